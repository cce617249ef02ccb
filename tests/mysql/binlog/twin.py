"""A slow and obvious reader of binary logs: one event after another, one object each. What the scanner is compared
with."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import zstandard


@dataclass
class Rows:
    table: str
    kind: int
    images: bytes
    offset: int


@dataclass
class Transaction:
    """`items`: rows events and statements' texts, in order."""

    txid: str
    file: str
    start: int
    commit_us: int
    end: int = -1
    items: list[Rows | str] = field(default_factory=list)


@dataclass
class _Event:
    kind: int
    when: int
    server: int
    flags: int
    body: bytes
    start: int
    end: int


def _events(raw: bytes) -> Iterator[_Event]:
    at, checksum = 4, 0
    while at < len(raw):
        size = int.from_bytes(raw[at + 9 : at + 13], "little")
        kind = raw[at + 4]
        if kind == 15:
            checksum = 4 * raw[at + size - 5]
        if checksum:
            whole = bytearray(raw[at : at + size])
            if kind == 15:
                whole[17] &= 0xFE
            assert zlib.crc32(whole[:-4]) == int.from_bytes(whole[-4:], "little")
        yield _event(raw[at : at + size - (4 if kind == 15 else checksum)], at, at + size)
        at += size


def _event(raw: bytes, start: int, end: int) -> _Event:
    return _Event(
        raw[4],
        int.from_bytes(raw[:4], "little"),
        int.from_bytes(raw[5:9], "little"),
        int.from_bytes(raw[17:19], "little"),
        raw[19:],
        start,
        end,
    )


def _inner(payload: _Event) -> Iterator[_Event]:
    at, compression = 0, 255
    while True:
        kind, at = _packed(payload.body, at)
        if kind == 0:
            break
        size, at = _packed(payload.body, at)
        if kind == 2:
            compression = _packed(payload.body, at)[0]
        at += size
    raw = payload.body[at:]
    if compression == 0:
        raw = zstandard.ZstdDecompressor().decompressobj().decompress(raw)
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at + 9 : at + 13], "little")
        yield _event(raw[at : at + size], payload.end, payload.end)
        at += size


def _packed(raw: bytes, at: int) -> tuple[int, int]:
    first = raw[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(raw[at + 1 : at + 1 + width], "little"), at + 1 + width


def _uncompressed(raw: bytes) -> bytes:
    width = raw[0] & 7
    size = int.from_bytes(raw[1 : 1 + width], "big")
    out = zlib.decompress(raw[1 + width :])
    assert len(out) == size
    return out


class Twin:
    """Reads files in order; `transactions` has all that are complete."""

    def __init__(self, captured: str) -> None:
        self.transactions: list[Transaction] = []
        self._captured = captured
        self._open: Transaction | None = None
        self._inside = False
        self._tables: dict[int, tuple[str, str]] = {}
        self._file = ""
        self._is_xa = False
        self._prepared: dict[str, list[Rows | str]] = {}
        self._savepoints: dict[str, int] = {}

    def read(self, files: Mapping[str, bytes]) -> list[Transaction]:
        for name, raw in files.items():
            self._file = name
            for event in _events(raw):
                self._take(event)
        return self.transactions

    def _begin(self, event: _Event, txid: str, commit_us: int = 0) -> None:
        self._open = Transaction(txid, self._file, event.start, commit_us or event.when * 1_000_000)
        self._inside = self._is_xa = False
        self._tables = {}
        self._savepoints = {}

    def _commit_held(self, held: list[Rows | str], start: int) -> None:
        """Rows that were held stand where they are committed."""
        assert self._open is not None
        self._open.items = [replace(item, offset=start) if isinstance(item, Rows) else item for item in held]

    def _end(self, event: _Event) -> None:
        assert self._open is not None
        self._open.end = event.end
        self.transactions.append(self._open)
        self._open = None

    def _take(self, event: _Event) -> None:  # noqa: PLR0912 - one branch for each kind
        body = event.body
        if event.kind in (33, 34):
            commit_us = 0
            if len(body) >= 49:
                commit_us = int.from_bytes(body[42:49], "little")
                if commit_us >> 55:
                    commit_us = int.from_bytes(body[49:56], "little")
            uuid = body[1:17].hex()
            uuid = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
            number = int.from_bytes(body[17:25], "little")
            self._begin(event, f"{uuid}:{number}" if event.kind == 33 else f"{self._file}:{event.start}", commit_us)
        elif event.kind == 162:
            number, domain = int.from_bytes(body[:8], "little"), int.from_bytes(body[8:12], "little")
            self._begin(event, f"{domain}-{event.server}-{number}")
            self._inside = not body[12] & 1
            self._is_xa = bool(body[12] & 64)
        elif event.kind == 40:
            for inner in _inner(event):
                self._take(inner)
        elif event.kind in (2, 165):
            self._statement(event)
        elif event.kind == 38:
            assert self._open is not None
            held, self._open.items = self._open.items, []
            if body[0]:
                self._commit_held(held, event.start)
            else:
                gtrid, bqual = (int.from_bytes(body[at : at + 4], "little") for at in (5, 9))
                ids = body[13 : 13 + gtrid].hex(), body[13 + gtrid : 13 + gtrid + bqual].hex()
                self._prepared[f"X'{ids[0]}',X'{ids[1]}',{int.from_bytes(body[1:5], 'little', signed=True)}"] = held
            self._end(event)
        elif event.kind == 16:
            self._end(event)
        elif event.kind == 19:
            database = body[9 : 9 + body[8]].decode()
            at = 10 + body[8]
            self._tables[int.from_bytes(body[:6], "little")] = (database, body[at + 1 : at + 1 + body[at]].decode())
        elif event.kind in (23, 24, 25, 30, 31, 32, 39, *range(166, 172)):
            self._rows(event)

    def _statement(self, event: _Event) -> None:
        body = event.body
        at = 13 + int.from_bytes(body[11:13], "little") + body[8] + 1
        text = (_uncompressed(body[at:]) if event.kind == 165 else body[at:]).decode()
        words = text.split()
        if self._open is None:
            self._begin(event, f"{self._file}:{event.start}")
        assert self._open is not None
        items = self._open.items
        if words[0] == "BEGIN" or words[:2] == ["XA", "START"]:
            self._inside, self._is_xa = True, words[0] == "XA"
        elif words[0] == "SAVEPOINT":
            self._savepoints[words[1]] = len(items)
        elif words[:2] == ["ROLLBACK", "TO"]:
            del items[self._savepoints[words[2]] :]
        elif words[:2] == ["XA", "COMMIT"]:
            self._commit_held(self._prepared.pop(words[2]), event.start)
            self._end(event)
        elif words[:2] == ["XA", "ROLLBACK"]:
            self._prepared.pop(words[2], None)
            self._open.items = []
            self._end(event)
        elif words == ["ROLLBACK"]:
            self._open.items = [item for item in items if isinstance(item, str)]
            self._end(event)
        elif words[0] == "COMMIT":
            self._end(event)
        else:
            if words[0] in ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE") and words[1] != "TEMPORARY":
                self._open.items.append(text)
            if not self._inside:
                self._end(event)

    def _rows(self, event: _Event) -> None:
        body = event.body
        database, table = self._tables[int.from_bytes(body[:6], "little")]
        if database != self._captured:
            return
        compressed = event.kind >= 166
        kind = {39: 4}.get(event.kind) or (
            event.kind - 166 if compressed else event.kind - 23 if event.kind < 30 else event.kind - 30
        ) % 3 + 1
        at = 8
        if 30 <= event.kind <= 39 or event.kind >= 169:
            at += int.from_bytes(body[8:10], "little")
        columns, at = _packed(body, at)
        at += (columns + 7) // 8 * (2 if kind in (2, 4) else 1)
        images = _uncompressed(body[at:]) if compressed else body[at:]
        assert self._open is not None
        self._open.items.append(Rows(f"{database}.{table}", kind, images, event.start))
