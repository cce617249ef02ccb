"""Sets of transactions: MySQL's executed GTID set, and MariaDB's last GTID of each domain. Values, never changed in
place.

Both are written as the servers write them, so that they can be given back to one.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from databus.core import InputError
from databus.sources.mysql.binlog._byte_reader import ByteReader

Interval = tuple[int, int]
"""First and last number, both included."""

NUMBER_MAX: Final = (1 << 63) - 2

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")


def join_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted, with those that overlap or touch made one.

    >>> join_intervals([(7, 9), (1, 3), (4, 5), (8, 12)])
    ((1, 5), (7, 12))
    """
    joined: list[Interval] = []
    for first, last in sorted(intervals):
        if joined and first <= joined[-1][1] + 1:
            if last > joined[-1][1]:
                joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def _subtract(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> tuple[Interval, ...]:
    rest: list[Interval] = []
    j = 0
    for first, last in left:
        at = first
        while j < len(right) and right[j][1] < at:
            j += 1
        k = j
        while k < len(right) and right[k][0] <= last:
            if right[k][0] > at:
                rest.append((at, right[k][0] - 1))
            at = right[k][1] + 1
            k += 1
        if at <= last:
            rest.append((at, last))
    return tuple(rest)


def _intersect(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> tuple[Interval, ...]:
    both: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            both.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(both)


def uuid_text(raw: bytes) -> str:
    """The text of a uuid's sixteen bytes."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@dataclass(frozen=True, slots=True)
class GtidSet:
    """A set of MySQL's GTIDs."""

    parts: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    """By `uuid` or `uuid:tag`, in lower case: intervals in ascending order that do not touch."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the server's text, such as `3E11FA47-...:1-5:9, 4f...:backup:1`. Raises `InputError`.

        >>> str(GtidSet.parse("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-3:4:backup:2"))
        '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-4:backup:2'
        """
        intervals: dict[str, list[Interval]] = {}
        for part in text.split(","):
            words = [word.strip().lower() for word in part.strip().split(":")]
            if words == [""]:
                continue
            if not _UUID.fullmatch(words[0]) or len(words) < 2:
                raise InputError(f"GTID set {text[:200]!r}: {part.strip()[:80]!r} is not `uuid:intervals`")
            key = words[0]
            for word in words[1:]:
                if _TAG.fullmatch(word):
                    key = f"{words[0]}:{word}"
                    continue
                numbers = word.split("-")
                if len(numbers) > 2 or not all(number.isascii() and number.isdigit() for number in numbers):
                    raise InputError(f"GTID set {text[:200]!r}: {word[:80]!r} is no interval")
                first, last = int(numbers[0]), int(numbers[-1])
                if not 1 <= first <= last <= NUMBER_MAX:
                    raise InputError(f"GTID set {text[:200]!r}: interval {word[:80]} is outside 1..{NUMBER_MAX}")
                intervals.setdefault(key, []).append((first, last))
        return cls({key: join_intervals(intervals[key]) for key in sorted(intervals)})

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Read the binary form of PREVIOUS_GTIDS and of COM_BINLOG_DUMP_GTID. Raises `ValueError` if it is none.

        Eight bytes: how many parts; or, where tags may occur (MySQL 8.3 and later), a one in the highest and in the
        lowest of them and how many in the six between. Each part: the uuid, then the tag where they may occur, how
        many intervals, and for each its first number and the one after its last.
        """
        reader = ByteReader(raw)
        count = reader.integer(8)
        tagged = count >> 56 == 1
        if tagged:
            count = count >> 8 & 0xFFFFFFFFFFFF
        elif count >> 56:
            raise ValueError("a GTID set of an unknown format")
        parts: dict[str, tuple[Interval, ...]] = {}
        for _ in range(count):
            key = uuid_text(reader.take(16))
            tag = reader.take(reader.varlen()).decode("ascii") if tagged else ""
            if tag:
                if not _TAG.fullmatch(tag):
                    raise ValueError(f"{tag!r} is no tag")
                key = f"{key}:{tag}"
            intervals = []
            for _ in range(reader.integer(8)):
                first, after = reader.integer(8), reader.integer(8)
                if not 1 <= first < after <= NUMBER_MAX + 1:
                    raise ValueError(f"interval {first}..{after}")
                intervals.append((first, after - 1))
            parts[key] = join_intervals((*parts.get(key, ()), *intervals))
        if not reader.is_done:
            raise ValueError("bytes after the last GTID")
        return cls({key: parts[key] for key in sorted(parts) if parts[key]})

    def encode(self) -> bytes:
        """The binary form, with tags only if there are any."""
        tagged = any(":" in key for key in self.parts)
        raw = bytearray((1 << 56 | len(self.parts) << 8 | 1 if tagged else len(self.parts)).to_bytes(8, "little"))
        for key, intervals in self.parts.items():
            uuid, _, tag = key.partition(":")
            raw += bytes.fromhex(uuid.replace("-", ""))
            if tagged:
                raw += bytes([len(tag) << 1]) + tag.encode()
            raw += len(intervals).to_bytes(8, "little")
            for first, last in intervals:
                raw += first.to_bytes(8, "little") + (last + 1).to_bytes(8, "little")
        return bytes(raw)

    def __str__(self) -> str:
        texts: list[str] = []
        last_uuid = ""
        for key, intervals in self.parts.items():
            numbers = ":".join(str(a) if a == b else f"{a}-{b}" for a, b in intervals)
            uuid, _, tag = key.partition(":")
            if uuid == last_uuid:
                texts[-1] += f":{tag}:{numbers}"
            else:
                texts.append(f"{key}:{numbers}")
            last_uuid = uuid
        return ",".join(texts)

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def size(self) -> int:
        """How many transactions it holds."""
        return sum(last - first + 1 for intervals in self.parts.values() for first, last in intervals)

    def has(self, key: str, number: int) -> bool:
        """Whether one transaction is in it."""
        intervals = self.parts.get(key, ())
        at = bisect_left(intervals, number, key=lambda interval: interval[1])
        return at < len(intervals) and intervals[at][0] <= number

    def contains(self, other: "GtidSet") -> bool:
        """Whether all of `other` is in it."""
        return not other.subtract(self)

    def add(self, other: "GtidSet") -> "GtidSet":
        """What is in either."""
        keys = sorted({*self.parts, *other.parts})
        return GtidSet({k: join_intervals((*self.parts.get(k, ()), *other.parts.get(k, ()))) for k in keys})

    def subtract(self, other: "GtidSet") -> "GtidSet":
        """What is in this one only."""
        rest = {key: _subtract(intervals, other.parts.get(key, ())) for key, intervals in self.parts.items()}
        return GtidSet({key: intervals for key, intervals in rest.items() if intervals})

    def intersect(self, other: "GtidSet") -> "GtidSet":
        """What is in both."""
        both = {key: _intersect(intervals, other.parts.get(key, ())) for key, intervals in self.parts.items()}
        return GtidSet({key: intervals for key, intervals in both.items() if intervals})


@dataclass(frozen=True, slots=True)
class GtidState:
    """Where a MariaDB server stands: the last transaction of each domain."""

    domains: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Domain id -> (server id, sequence number)."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `0-1-100,2-7-3`; of several with one domain the highest. Raises `InputError`.

        >>> str(GtidState.parse("2-7-3, 0-1-100"))
        '0-1-100,2-7-3'
        """
        last: dict[int, tuple[int, int]] = {}
        for part in text.split(","):
            if not part.strip():
                continue
            numbers = part.strip().split("-")
            if len(numbers) != 3 or not all(number.isascii() and number.isdigit() for number in numbers):
                raise InputError(f"GTID position {text[:200]!r}: {part.strip()[:80]!r} is not `domain-server-sequence`")
            domain, server, sequence = map(int, numbers)
            if domain >= 1 << 32 or server >= 1 << 32 or sequence > NUMBER_MAX:
                raise InputError(f"GTID position {text[:200]!r}: {part.strip()[:80]!r} is out of range")
            if domain not in last or sequence > last[domain][1]:
                last[domain] = (server, sequence)
        return cls({domain: last[domain] for domain in sorted(last)})

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in self.domains.items())

    def __bool__(self) -> bool:
        return bool(self.domains)

    @property
    def size(self) -> int:
        """The sum over domains of the last sequence numbers."""
        return sum(number for _, number in self.domains.values())

    def contains(self, other: "GtidState") -> bool:
        """Whether each domain of `other` stands here at least as far."""
        return not self.lacks(other)

    def lacks(self, other: "GtidState") -> "GtidState":
        """The domains in which `other` is ahead, with its last transactions."""
        last = self.domains
        return GtidState({d: gtid for d, gtid in other.domains.items() if last.get(d, (0, 0))[1] < gtid[1]})

    def add(self, other: "GtidState") -> "GtidState":
        """For each domain, the transaction that is further on."""
        both = dict(self.domains) | dict(self.lacks(other).domains)
        return GtidState({domain: both[domain] for domain in sorted(both)})


@dataclass(frozen=True, slots=True)
class TaggedGtid:
    """A GTID that may have a tag."""

    name: str
    """`uuid` or `uuid:tag`."""
    number: int
    commit_us: int
    """The original commit time; 0 where the event does not say."""


def parse_tagged(body: bytes) -> TaggedGtid:  # noqa: C901 - a branch for each field of the format
    """Read the body. Raises `ValueError`.

    A message: version, size, last field that may not be ignored, then fields, each preceded by its number: 0 flags, 1
    uuid (sixteen numbers), 2 number, 3 tag, 4 last committed, 5 sequence number, 6 immediate and 7 original commit
    time, and some that do not matter here. Whole numbers are of variable length, signed ones with the sign in the
    lowest bit.
    """
    reader = ByteReader(body)
    if reader.varlen() != 1:
        raise ValueError("a GTID in an unknown version of its format")
    reader.varlen()
    reader.varlen()
    uuid, tag, number, immediate, original = b"", "", 0, 0, 0
    while not reader.is_done:
        field = reader.varlen()
        if field == 0:
            reader.varlen()
        elif field == 1:
            uuid = bytes(_byte(reader.varlen()) for _ in range(16))
        elif field == 2:
            number = _signed(reader.varlen())
        elif field == 3:
            tag = reader.take(reader.varlen()).decode("ascii")
        elif field in (4, 5):
            reader.varlen()
        elif field == 6:
            immediate = reader.varlen()
        elif field == 7:
            original = reader.varlen()
        else:
            break
    if len(uuid) != 16:
        raise ValueError("a GTID without its server's uuid")
    return TaggedGtid(f"{uuid_text(uuid)}:{tag}" if tag else uuid_text(uuid), number, original or immediate)


def _byte(value: int) -> int:
    if value > 255:
        raise ValueError(f"{value} is no byte")
    return value


def _signed(value: int) -> int:
    return value >> 1 if value & 1 == 0 else -(value >> 1) - 1
