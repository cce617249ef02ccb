"""Logs put together by hand, for what no server writes on request."""

import uuid
import zlib
from collections.abc import Sequence

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


class Writer:
    """A log file of a MySQL 8 server with checksums, event by event."""

    def __init__(self, version: str = "8.0.31", *, table_id: int = 77) -> None:
        self.raw = bytearray(b"\xfebin")
        self.table_id = table_id
        lengths = bytearray(42)
        lengths[18] = 8
        self.event(15, b"\4\0" + version.encode().ljust(50, b"\0") + bytes(4) + b"\x13" + bytes(lengths) + b"\1")

    def event(
        self, kind: int, body: bytes, *, flags: int = 0, when: int = 1_700_000_000, server: int = 1, moves: bool = True
    ) -> "Writer":
        size = 19 + len(body) + 4
        end = len(self.raw) + size if moves else 0
        head = when.to_bytes(4, "little") + bytes([kind]) + server.to_bytes(4, "little") + size.to_bytes(4, "little")
        event = head + (end & 0xFFFFFFFF).to_bytes(4, "little") + flags.to_bytes(2, "little") + body
        self.raw += event + zlib.crc32(event).to_bytes(4, "little")
        return self

    def previous(self, encoded: bytes) -> "Writer":
        return self.event(35, encoded, flags=0x80)

    def gtid(self, number: int, *, server: str = SERVER) -> "Writer":
        return self.event(33, b"\0" + uuid.UUID(server).bytes + number.to_bytes(8, "little") + b"\2" + bytes(16))

    def anonymous(self) -> "Writer":
        return self.event(34, bytes(25) + b"\2" + bytes(16))

    def mariadb_gtid(self, domain: int, server: int, number: int, *, flags: int = 0) -> "Writer":
        body = number.to_bytes(8, "little") + domain.to_bytes(4, "little") + bytes([flags]) + bytes(6)
        return self.event(162, body, server=server)

    def query(self, text: str, database: str = "shop") -> "Writer":
        return self.event(2, bytes(8) + bytes([len(database)]) + bytes(4) + database.encode() + b"\0" + text.encode())

    def table_map(
        self, name: str = "t", database: str = "shop", types: Sequence[int] = (3, 3), metas: bytes = b""
    ) -> "Writer":
        names = bytes([len(database)]) + database.encode() + b"\0" + bytes([len(name)]) + name.encode() + b"\0"
        columns = bytes([len(types), *types, len(metas)]) + metas + bytes((len(types) + 7) // 8)
        return self.event(19, self.table_id.to_bytes(6, "little") + b"\1\0" + names + columns)

    def write(self, *images: bytes, columns: int = 2, present: bytes = b"\xff", kind: int = 30) -> "Writer":
        bits = present * (2 if kind in (24, 31) else 1)
        extra = b"\2\0" if kind >= 30 else b""
        body = self.table_id.to_bytes(6, "little") + b"\1\0" + extra + bytes([columns]) + bits + b"".join(images)
        return self.event(kind, body)

    def xid(self) -> "Writer":
        return self.event(16, bytes(8))

    def transaction(self, number: int, *images: bytes) -> "Writer":
        return self.gtid(number).query("BEGIN").table_map().write(*images or (ROW,)).xid()

    def __bytes__(self) -> bytes:
        return bytes(self.raw)


ROW = b"\0" + (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
EMPTY_SET = bytes(8)
EMPTY_LIST = bytes(4)
