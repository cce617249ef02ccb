"""Groups: any rows of any tables go into frames and come back equal; what breaks a rule is refused."""

import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from databus.core import BUS_SEQ_MIN, ControlKind, CorruptData, LimitExceeded, StreamCut
from databus.schema import Column, TableSchema, frame_schema
from databus.wire import (
    BODY_BYTES_MAX,
    COMMIT,
    ROWS,
    SNAPSHOT,
    Commit,
    Control,
    Frame,
    FrameParser,
    Group,
    OpenSnapshot,
    Rows,
    encode_body,
    encode_group,
    pack_header,
    unpack_header,
)
from databus.wire._frame import ARENA_BYTES, GROUP_FRAMES_MAX
from databus.wire._header import COMMIT_BODY_BYTES_MAX, POSITION_INLINE_BYTES_MAX
from tests.log.make import ORDERS, STOCK, control, group, rows
from tests.wire.strategies import batches, groups, tables

LOOSE = settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Numbers:
    """Gives ids in the order of asking."""

    def __init__(self):
        self._ids = {}

    def number_of(self, table):
        return self._ids.setdefault(table.source, len(self._ids) + 1), 1


def encode(each):
    return b"".join(bytes(buffer) for buffer in encode_group(each, Numbers(), 7).buffers)


def parse(content, sizes=(1 << 30,), **limits):
    """Feed the parser pieces of these sizes, over and over."""
    parser = FrameParser("relay at test", **limits)
    found, at, turn = [], 0, 0
    while at < len(content):
        space = parser.space()
        count = max(1, min(len(space), sizes[turn % len(sizes)], len(content) - at))
        space[:count] = content[at : at + count]
        found += parser.received(count)
        at, turn = at + count, turn + 1
    parser.finish()
    return found


@LOOSE
@given(groups())
def test_any_group_comes_back_equal(each):
    encoded = encode_group(each, Numbers(), 7)
    assert encoded.bytes_total == len(encode(each))
    assert [fingerprint for _, fingerprint in encoded.schemas] == [part.table.fingerprint for part in each.rows]
    (found,) = parse(encode(each))
    assert Commit.from_header(found.commit) == each.commit
    assert found.commit.flags & SNAPSHOT == (SNAPSHOT if each.snapshot else 0)
    assert found.control is None
    assert len(found.rows) == len(each.rows)
    for frame, part in zip(found.rows, each.rows, strict=True):
        assert frame.batch.equals(part.batch)
        assert frame.batch.schema.equals(frame_schema(part.table), check_metadata=True)
        assert frame.header.fingerprint == part.table.fingerprint
        assert ipc.open_stream(bytes(frame.body)).read_all().num_rows == frame.header.rows  # a foreign reader's way
        pairs = list(zip(*(part.batch.column(name).to_pylist() for name in ("_commit_version", "_seq")), strict=True))
        assert (frame.header.first, frame.header.last) == (pairs[0], pairs[-1])


@LOOSE
@given(st.lists(groups(), min_size=1, max_size=4), st.lists(st.integers(1, 700), min_size=1, max_size=6))
def test_pieces_of_any_size_give_what_the_whole_gives(several, sizes):
    content = b"".join(map(encode, several))
    whole, pieces = parse(content), parse(content, sizes)
    assert [each.commit for each in pieces] == [each.commit for each in whole]
    for a, b in zip(pieces, whole, strict=True):
        assert [bytes(frame.body) for frame in a.frames] == [bytes(frame.body) for frame in b.frames]


@LOOSE
@given(groups(), groups(), st.data())
def test_a_stream_that_is_cut_says_so_unless_it_is_between_groups(one, two, data):
    first, second = encode(one), encode(two)
    content = first + second
    at = data.draw(st.integers(0, len(content)))
    if at in (0, len(first), len(content)):
        assert len(parse(content[:at])) == [0, len(first), len(content)].index(at)
    else:
        with pytest.raises(StreamCut, match=r"relay at test, byte \d+"):
            parse(content[:at])


@LOOSE
@given(groups(), st.data(), st.lists(st.integers(1, 900), min_size=1, max_size=3))
def test_a_flipped_byte_anywhere_is_never_a_wrong_row(each, data, sizes):
    content = bytearray(encode(each))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    # a length that was made longer looks like a cut stream; all else is named, with the offset of the frame
    with pytest.raises((CorruptData, StreamCut), match=r"relay at test, byte \d+") as caught:
        parse(bytes(content), sizes)
    assert int(str(caught.value).split("byte ")[1].split(":")[0]) <= at


@LOOSE
@given(st.data())
def test_a_frame_without_rows_is_a_frame(data):
    table = data.draw(tables())
    batch = data.draw(batches(table, []))
    body = b"".join(encode_body(batch))
    header = pack_header(ROWS, body_bytes=len(body), first=(1, 1), last=(1, 1), commit_us=0, capture_us=0)
    frame = Frame(unpack_header(memoryview(header), ""), memoryview(body))
    assert frame.batch.num_rows == 0
    assert frame.batch.schema.equals(batch.schema, check_metadata=True)


def test_rows_of_a_group_are_never_empty():
    with pytest.raises(ValueError, match=r"main\.orders: a frame of no rows"):
        encode(Group(Commit(1, 1, "a", {}, 0), (rows(ORDERS, []),)))


def test_two_frames_of_one_table_in_one_schema_are_refused():
    with pytest.raises(ValueError, match="two frames of rows of one table"):
        encode(Group(Commit(1, 2, "a", {}, 0), (rows(ORDERS, [(1, 1)]), rows(ORDERS, [(1, 2)]))))


def test_a_batch_in_another_schema_is_refused():
    with pytest.raises(ValueError, match=r"main\.stock: the batch's schema is not the table's"):
        encode(Group(Commit(1, 1, "a", {}, 0), (Rows(STOCK, rows(ORDERS, [(1, 1)]).batch),)))


def test_rows_behind_the_groups_end_are_refused():
    with pytest.raises(ValueError, match="in a group that ends at"):
        encode(Group(Commit(1, 1, "a", {}, 0), (rows(ORDERS, [(1, 2)]),)))


def test_the_groups_first_pair_is_the_least_of_its_frames():
    each = Group(Commit(9, 1, "a", {}, 0), (rows(ORDERS, [(5, 1), (9, 1)]), rows(STOCK, [(3, 2), (8, 1)])))
    assert encode_group(each, Numbers(), 0).first == (3, 2)
    assert parse(encode(each))[0].commit.first == (3, 2)
    assert encode_group(Group(Commit(9, 1, "a", {}, 0)), Numbers(), 0).first == (9, 1)


@pytest.mark.parametrize("kind", list(ControlKind))
def test_a_control_is_the_first_frame_of_its_group(kind):
    body = {"ddl": "ALTER TABLE orders ADD x TEXT -- ä", "from": None, "number": 1 << 60}
    each = Group(Commit(4, 9, "a", {}, 0), (rows(ORDERS, [(4, 2)]),), control=control(kind, ORDERS, 4, 1, **body))
    encoded = encode_group(each, Numbers(), 0)
    assert encoded.first == (4, 1)
    assert encoded.schemas[0] == (1, 0 if kind is ControlKind.DROP else ORDERS.fingerprint)
    (found,) = parse(encode(each))
    assert found.control is not None
    assert found.control.control == {"kind": kind.value, "source": "main.orders", **body}
    assert found.control.header.first == (4, 1)
    assert len(found.rows) == 1


def test_a_control_that_is_no_object_is_corrupt():
    header = unpack_header(memoryview(pack_header(3, first=(1, 1), last=(1, 1), commit_us=0, capture_us=0)), "")
    for body in (b"[]", b"{", b"\xff"):
        with pytest.raises(CorruptData, match="relay, byte 7"):
            _ = Frame(header, memoryview(body), "relay, byte 7").control


def test_a_body_that_is_no_arrow_stream_is_corrupt():
    for body, count in ((b"no arrow here..", 1), (b"".join(encode_body(rows(ORDERS, [(1, 1)]).batch)), 2), (b"", 0)):
        header = pack_header(ROWS, rows=count, first=(1, 1), last=(1, 1), commit_us=0, capture_us=0)
        with pytest.raises(CorruptData, match="relay, byte 7"):
            _ = Frame(unpack_header(memoryview(header), ""), memoryview(body), "relay, byte 7").batch


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3), st.integers(0, 1 << 62))
def test_a_commit_with_open_snapshots_comes_back_equal(position, generation):
    snapshots = {
        "main.a": OpenSnapshot(generation, (1, "x", None), (3, BUS_SEQ_MIN)),
        "main.b": OpenSnapshot(generation),
    }
    commit = Commit(5, 2, "tx", position, 7, snapshots, continues=True)
    (found,) = parse(encode(Group(commit)))
    assert Commit.from_header(found.commit) == commit


@pytest.mark.parametrize("position", [b"", b"{", b"[]", b'{"txid": 1}', b'{"txid": "a", "position": 5}', b"\xff"])
def test_a_position_that_nobody_wrote_is_corrupt(position):
    packed = pack_header(2, first=(1, 1), last=(1, 1), commit_us=0, capture_us=0, position=position)
    with pytest.raises(CorruptData, match="there: its position is not readable"):
        Commit.from_header(unpack_header(memoryview(packed), ""), "there")


def test_a_frame_above_the_limit_is_refused_before_it_is_received():
    content = encode(group(1, count=1000))
    with pytest.raises(LimitExceeded, match="frame_bytes_max=10000"):
        parse(content[:200], frame_bytes_max=10_000)
    assert len(parse(content, frame_bytes_max=len(content))) == 1


def test_more_frames_than_the_limit_are_refused():
    content = encode(group(1, tables=(ORDERS, STOCK)))
    with pytest.raises(LimitExceeded, match="group_frames_max=1"):
        parse(content, group_frames_max=1)


def test_a_frame_larger_than_an_arena_is_parsed():
    table = TableSchema("main.big", (Column("text", "binary"),))
    schema = frame_schema(table)
    batch = rows(ORDERS, [(1, 1)]).batch
    bus = [batch.column(i) for i in range(2, batch.num_columns)]
    big = pa.RecordBatch.from_arrays([pa.array([b"x" * (20 << 20)], pa.binary()), *bus], schema=schema)
    content = encode(group(1)) + encode(Group(Commit(2, 1, "b", {}, 0), (Rows(table, big),))) + encode(group(3))
    found = parse(content, (300_001, 7, 1 << 20))
    assert [each.commit.last_scn for each in found] == [1, 2, 3]
    assert found[1].rows[0].batch.column(0)[0].as_py() == b"x" * (20 << 20)


def test_frames_stay_as_they_are_while_the_parser_goes_on():
    content = b"".join(encode(group(scn, count=3000, note=f"of {scn}")) for scn in range(1, 200))
    assert len(content) > 3 * ARENA_BYTES
    parser, kept, at = FrameParser("test"), [], 0
    while at < len(content):
        space = parser.space()
        count = min(len(space), 70_001, len(content) - at)
        space[:count] = content[at : at + count]
        kept += parser.received(count)
        at += count
    for scn, each in enumerate(kept, 1):
        assert each.rows[0].batch.column("note")[0].as_py() == f"of {scn}-{scn}-1"


def test_a_control_is_json_of_its_body():
    each = Group(Commit(1, 1, "a", {}, 0), control=Control(ControlKind.GAP, ORDERS, 1, 1, {"kind": "gap", "from": 3}))
    body = bytes(encode_group(each, Numbers(), 0).buffers[1])
    assert json.loads(body) == {"kind": "gap", "from": 3}
    assert len(body) % 8 == 0


NAME = "a_database_with_a_long_name_of_its_own.and_tables_with_names_of_sixty_four_characters_as_servers_allow_0000"


@pytest.mark.parametrize("gtid_bytes", [0, 3_000, 100 << 10])
@pytest.mark.parametrize("tables", [0, 10, 2_000])
def test_a_position_of_any_size_comes_back_equal(gtid_bytes, tables):
    snapshots = {f"{NAME}{i}": OpenSnapshot(BUS_SEQ_MIN + i, (i, "x"), (3, BUS_SEQ_MIN + i)) for i in range(tables)}
    commit = Commit(5, 2, "tx", {"gtids": "g" * gtid_bytes}, 7, snapshots, has_unread=bool(tables))
    encoded = encode_group(Group(commit, (rows(ORDERS, [(5, 1)]),)), Numbers(), 7)
    assert sum(map(len, encoded.buffers)) == encoded.bytes_total
    header = unpack_header(memoryview(bytes(encoded.buffers[-1 if encoded.commit_bytes < 4096 else -2])), "")
    assert header.kind == COMMIT
    assert header.frame_bytes == encoded.commit_bytes
    assert len(header.position) <= POSITION_INLINE_BYTES_MAX
    assert header.body_bytes % 8 == 0
    content = b"".join(bytes(buffer) for buffer in encoded.buffers) + encode(group(6))
    for sizes in ((1 << 30,), (311, 4_000, 70_001)):
        found = parse(content, sizes)
        assert [Commit.from_header(each.commit).scn for each in found] == [5, 6]
        assert Commit.from_header(found[0].commit) == commit
        assert len(found[0].rows[0].batch) == 1


def test_open_snapshots_stand_in_the_header_where_only_gtids_do_not_fit():
    """Whoever serves frames reads them with each commit frame, and the source's own position hardly ever."""
    commit = Commit(5, 2, "tx", {"gtids": "g" * 5_000}, 7, {"a.b": OpenSnapshot(1)})
    inline, body = commit.position_parts()
    assert json.loads(inline) == {"txid": "tx", "snapshots": {"a.b": OpenSnapshot(1).to_json()}}
    assert json.loads(body) == {"position": {"gtids": "g" * 5_000}}


def test_a_flipped_byte_in_a_commits_body_is_noticed():
    content = bytearray(encode(Group(Commit(5, 2, "tx", {"gtids": "g" * 5_000}, 7))))
    content[-3_000] ^= 1
    with pytest.raises(CorruptData, match="relay at test, byte 0: the body's checksum"):
        parse(bytes(content))


def test_a_position_that_no_reader_takes_is_refused():
    with pytest.raises(LimitExceeded, match="the position after SCN 5"):
        encode(Group(Commit(5, 2, "tx", {"gtids": "g" * COMMIT_BODY_BYTES_MAX}, 7)))


def test_more_frames_than_readers_take_are_refused():
    with pytest.raises(LimitExceeded, match=str(GROUP_FRAMES_MAX)):
        encode(Group(Commit(5, 2, "tx", {}, 7), (rows(ORDERS, [(5, 1)]),) * GROUP_FRAMES_MAX))


def test_the_head_of_the_largest_frame_that_is_written_is_received():
    """The limit of readers counts the header too; the body itself is more than a test wants to hold."""
    header = pack_header(ROWS, body_bytes=BODY_BYTES_MAX, first=(1, 1), last=(1, 1), commit_us=0, capture_us=0)
    parser = FrameParser("relay at test")
    parser.space()[: len(header)] = header
    assert parser.received(len(header)) == []
