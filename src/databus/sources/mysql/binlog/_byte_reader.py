"""Reader: little-endian numbers and bytes, taken from the front. For the events that are handled one by one."""


class ByteReader:
    """Takes bytes from the front. Raises `ValueError` when there are too few."""

    __slots__ = ("_at", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    @property
    def at(self) -> int:
        """How many bytes were taken."""
        return self._at

    @property
    def is_done(self) -> bool:
        """Whether all bytes were taken."""
        return self._at == len(self._raw)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > len(self._raw) - self._at:
            raise ValueError(f"it ends {count - len(self._raw) + self._at} bytes early")
        self._at += count
        return self._raw[self._at - count : self._at]

    def integer(self, width: int) -> int:
        """An unsigned integer of so many bytes."""
        return int.from_bytes(self.take(width), "little")

    def rest(self) -> bytes:
        """All remaining bytes."""
        return self.take(len(self._raw) - self._at)

    def until_zero(self) -> bytes:
        """The bytes before the next zero byte, which is taken too."""
        end = self._raw.find(b"\0", self._at)
        if end < 0:
            raise ValueError("a text without its zero byte")
        return self.take(end - self._at + 1)[:-1]

    def varlen(self) -> int:
        """MySQL's serialization library: as many trailing ones in the first byte as bytes follow it."""
        first = self.take(1)[0]
        more = ((~first & (first + 1)).bit_length() - 1) if first != 0xFF else 8
        raw = bytes([first]) + self.take(more)
        return int.from_bytes(raw, "little") >> (more + 1) if more < 8 else int.from_bytes(raw[1:], "little")
