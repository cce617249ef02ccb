"""Every character set: our conversion is the server's own, over all byte sequences."""

from collections.abc import Iterator
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import UnrepresentableValue, UnsupportedFeature
from databus.sources.mysql._definition import ColumnDefinition, FieldType
from databus.sources.mysql.rows import Policies, to_text
from databus.testing.servers import Server
from tests.mysql.rows.guarded import exact
from tests.mysql.rows.walker import decode_all

SINGLE = [
    "armscii8", "ascii", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "dec8", "geostd8",
    "greek", "hebrew", "hp8", "keybcs2", "koi8r", "koi8u", "latin1", "latin2", "latin5", "latin7", "macce",
    "macroman", "swe7", "tis620",
]  # fmt: skip
MULTIBYTE = ["big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis"]
UNICODE = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "utf8mb4": "utf-8"}
REPLACED = "\N{REPLACEMENT CHARACTER}"


class Here:
    """Rows of a test."""

    table = "shop.t"

    def row(self, number: int) -> str:
        return f"row {number}"


def convert(charset: str, values: list[bytes | None], policy: str = "replace") -> list[str | None]:
    column = ColumnDefinition("c", FieldType.BLOB, 2, "text", charset=charset)
    policies = Policies(invalid_text=policy)  # type: ignore[arg-type]
    found = to_text(column, exact(pa.array(values, pa.binary())), policies, Here())
    found.validate(full=True)
    return found.to_pylist()


def sequences(charset: str) -> Iterator[bytes]:
    yield from (bytes([byte]) for byte in range(256))
    if charset in MULTIBYTE:
        yield from map(bytes, product(range(0x80, 0x100), range(0x100)))
    if charset in ("ujis", "eucjpms"):
        yield from (bytes([0x8F, a, b]) for a, b in product(range(0x80, 0x100), range(0x80, 0x100)))


def test_each_sequence_is_the_character_that_the_server_makes_of_it(server: Server, database: str) -> None:
    with server.connect(database=database, charset="utf8mb4", init_command="SET sql_mode = ''") as session:
        cursor = session.cursor()
        cursor.execute("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")
        known = {row[0] for row in cursor.fetchall()}
        assert known <= {*SINGLE, *MULTIBYTE, *UNICODE, "binary", "utf8", "utf8mb3"}
        cursor.execute("CREATE TABLE s (x VARBINARY(4) NOT NULL)")
        every = sorted({found for charset in ("latin1", "ujis") for found in sequences(charset)})
        for start in range(0, len(every), 10_000):
            cursor.execute("INSERT INTO s VALUES " + ",".join(f"(x'{x.hex()}')" for x in every[start : start + 10_000]))
        for charset in sorted(known & {*SINGLE, *MULTIBYTE}):
            wanted = list(sequences(charset))
            text = f"CAST(CONVERT(CONVERT(x USING {charset}) USING utf8mb4) AS BINARY)"
            cursor.execute(f"SELECT x, {text} FROM s WHERE LENGTH(x) <= {max(map(len, wanted))}")
            theirs = {bytes(x): None if text is None else bytes(text).decode() for x, text in cursor.fetchall()}
            for sequence, ours in zip(wanted, convert(charset, wanted), strict=True):
                assert ours is not None
                text = theirs[sequence]
                is_character = text is not None and len(text) == 1 and text != REPLACED
                is_character &= text != "?" or sequence == b"?"
                if charset in ("sjis", "cp932") and len(sequence) == 2 and 0xA1 <= sequence[0] <= 0xDF:
                    assert ours[0] == text[:1] if text else True  # MySQL drops what follows a half-width kana
                elif is_character:
                    assert ours == text, (charset, sequence.hex())
                elif len(sequence) == 1 or REPLACED in ours:
                    assert ours == REPLACED or len(sequence) > 1, (charset, sequence.hex())
                else:
                    assert len(ours) == len(sequence), (charset, sequence.hex())  # characters one by one


def test_four_bytes_of_gb18030_are_the_servers(server: Server, database: str) -> None:
    if "mariadb" in server.kind:
        pytest.skip("MariaDB has no gb18030")
    leads = [(a, b) for a in (0x81, 0x82, 0x83, 0x84, 0x8F, 0x90, 0xE3, 0xE4, 0xFE) for b in (0x30, 0x35, 0x39)]
    every = [bytes([a, b, c, d]) for a, b in leads for c in range(0x81, 0xFF) for d in range(0x30, 0x3A)]
    with server.connect(database=database, charset="utf8mb4", init_command="SET sql_mode = ''") as session:
        cursor = session.cursor()
        cursor.execute("CREATE TABLE s (x VARBINARY(4) NOT NULL)")
        for start in range(0, len(every), 10_000):
            cursor.execute("INSERT INTO s VALUES " + ",".join(f"(x'{x.hex()}')" for x in every[start : start + 10_000]))
        cursor.execute("SELECT x, CAST(CONVERT(CONVERT(x USING gb18030) USING utf8mb4) AS BINARY) FROM s")
        theirs = {bytes(x): None if text is None else bytes(text).decode() for x, text in cursor.fetchall()}
    for sequence, ours in zip(every, convert("gb18030", every), strict=True):
        assert ours == (theirs[sequence] if theirs[sequence] not in (None, "?", "") else REPLACED), sequence.hex()


def test_columns_of_each_character_set_come_from_the_log_as_select_has_them(server: Server, database: str) -> None:
    with server.connect(database=database, charset="utf8mb4", init_command="SET sql_mode = ''") as session:
        cursor = session.cursor()
        cursor.execute("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")
        charsets = sorted({row[0] for row in cursor.fetchall()} - {"binary"})
        columns = [f"{kind} CHARACTER SET {charset}" for charset in charsets for kind in ("VARCHAR(60)", "CHAR(20)")]
        parts = ", ".join(f"c{i} {words}" for i, words in enumerate(columns))
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {parts})")
        since = server.position()
        texts = [
            "plain",
            "",
            "\xe9\xdf\u20ac",
            "\u0416\u4e00\u3042\u30a2\uac00",
            "\u0391\u05d0\u0e01\u10d0\u0561",
            "a  ",
            "\U0001f4a9",
        ]
        for number, text in enumerate(texts):
            cursor.execute(f"INSERT INTO t VALUES (%s{', %s' * len(columns)})", (number, *[text] * len(columns)))
        session.commit()
        selected = ", ".join(f"CONVERT(c{i} USING utf8mb4)" for i in range(len(columns)))
        cursor.execute(f"SELECT {selected} FROM t ORDER BY id")
        expected = cursor.fetchall()
    _, found = decode_all(server, since, "t")
    for number, words in enumerate(columns):
        assert found.column(number + 1).to_pylist() == [row[number] for row in expected], words


@pytest.mark.usefixtures("walls")
@given(st.sampled_from(sorted(UNICODE)), st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.none()))
def test_unicode_in_any_form_is_text(charset: str, texts: list[str | None]) -> None:
    if charset == "ucs2":
        texts = [text if text is None else "".join(c for c in text if ord(c) < 0x10000) for text in texts]
    values = [text if text is None else text.encode(UNICODE[charset]) for text in texts]
    assert convert(charset, values, "error") == texts


@pytest.mark.usefixtures("walls")
@given(st.sampled_from([*SINGLE, *MULTIBYTE, *UNICODE]), st.lists(st.binary(max_size=30)))
def test_any_bytes_are_text_or_refused_or_replaced(charset: str, values: list[bytes | None]) -> None:
    """Refused exactly where something is replaced, and valid UTF-8 in any case."""
    replaced = convert(charset, values)
    is_valid = not any(REPLACED in (text or "") for text in replaced)
    if any("\xef\xbf\xbd".encode("latin-1") in (value or b"") for value in values):
        return  # the replacement itself is text
    try:
        assert convert(charset, values, "error") == replaced
    except UnrepresentableValue as error:
        assert "invalid_text: replace" in str(error)  # noqa: PT017 - or there is no error
        assert not is_valid
    else:
        assert is_valid or charset in UNICODE


@pytest.mark.usefixtures("walls")
@given(st.binary(max_size=40))
def test_utf8_is_judged_as_python_judges_it(value: bytes) -> None:
    try:
        want = value.decode()
    except UnicodeDecodeError:
        with pytest.raises(UnrepresentableValue, match=r"shop\.t: column 'c' at row 1 .* utf8mb4"):
            convert("utf8mb4", [b"ok", value], "error")
    else:
        assert convert("utf8mb4", [b"ok", value], "error") == ["ok", want]


@pytest.mark.usefixtures("walls")
def test_a_slice_of_an_array_is_converted_alone() -> None:
    column = ColumnDefinition("c", FieldType.BLOB, 2, "text", charset="latin1")
    values = pa.array([b"\xe9", None, b"b", b"\xff"], pa.binary()).slice(1, 3)
    assert to_text(column, values, Policies(), Here()).to_pylist() == [None, "b", "\xff"]
    assert to_text(column, values.slice(1, 0), Policies(), Here()).to_pylist() == []


def test_a_character_set_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeature, match="filename"):
        convert("filename", [b"x"])
