"""Logs with damage, and what comes of reading them: by the scanner, and on to the arrays of their rows."""

import random
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import zstandard

from databus.core import DatabusError
from databus.sources.mysql.binlog import LogRun, TableMap
from databus.sources.mysql.rows import bus_arrays, decode, make_plan
from databus.sources.mysql.tables import from_table_map
from tests.mysql.binlog.conftest import Log
from tests.mysql.binlog.support import scanner
from tests.mysql.rows.guarded import Walls, guarded

GUARD = 256
_PAYLOAD = 40
_PACKED = [bytes([kind]) for kind in (_PAYLOAD, *range(165, 172))]
_BEGIN = (33, 34, 162)
"""Kinds of the event that a transaction begins with."""

_KNOWN = (2, 4, 15, 16, 19, 23, 24, 30, 31, 33, 34, 35, 38, 39, 40, 42, 162, 163, 165, 166, 167, 170, 250)
_KINDS = (*range(43), *range(160, 172), 250, 255)


def events_of(raw: bytes, at: int = 4) -> list[bytes]:
    """The events of a log file, or of a payload where `at` is 0."""
    events = []
    while at < len(raw):
        size = int.from_bytes(raw[at + 9 : at + 13], "little")
        events.append(raw[at : at + size])
        at += max(size, 19)
    return events


def _sealed(event: bytes) -> bytes:
    return event[:-4] + zlib.crc32(event[:-4]).to_bytes(4, "little") if len(event) > 23 else event


def placed(events: list[bytes]) -> list[bytes]:
    """With end positions that are right, so that what is behind a change is reached."""
    found, at = [], 4
    for event in events:
        at += len(event)
        if len(event) > 23:
            found.append(_sealed(event[:13] + at.to_bytes(4, "little") + event[17:]))
        else:
            found.append(event)
    return found


def small(log: Log) -> list[bytes]:
    """The log's files without what is large."""
    files = []
    for raw in log.files.values():
        events = [event for event in events_of(raw) if len(event) < 4_000]
        files.append(b"\xfebin" + b"".join(placed(events)))
    return files


def pieces(raw: bytes, events_max: int) -> list[bytes]:
    """The log in several, each with its head: a piece ends where a transaction does, behind so many events or more."""
    events = events_of(raw)
    begins = [i for i, event in enumerate(events) if event[4] in _BEGIN] or [len(events)]
    cuts = begins[:1]
    for i in begins:
        if i - cuts[-1] >= events_max:
            cuts.append(i)
    head = events[: cuts[0]]
    parts = [head + events[a:b] for a, b in zip(cuts, [*cuts[1:], len(events)], strict=True)]
    return [b"\xfebin" + b"".join(placed(part)) for part in parts]


# --- damage ---


def _damage(event: bytearray, dice: random.Random) -> bytearray:
    """One event with a few bytes that are not its own; some of them where lengths and counts stand."""
    if len(event) < 19:
        return event
    what = dice.randrange(6)
    at = dice.randrange(len(event)) if dice.random() < 0.5 else dice.randrange(min(len(event), 60))
    if what == 0:
        event[at] ^= 1 << dice.randrange(8)
    elif what == 1:
        event[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF))
    elif what == 2:
        event[at : at + dice.randrange(1, 9)] = dice.randbytes(dice.randrange(9))
    elif what == 3:
        del event[at:]
    elif what == 4:
        event[9:13] = dice.choice((0, 18, 19, 23, len(event) - 1, len(event) + 1, 1 << 31, (1 << 32) - 1)).to_bytes(
            4, "little"
        )
    else:
        event[4] = dice.choice(_KINDS if dice.random() < 0.5 else _KNOWN)
    return event


def _damage_inside(event: bytearray, dice: random.Random) -> bytearray:
    """The same to what is compressed in the event, which is packed up again."""
    if event[4] == _PAYLOAD:
        start = event.find(b"\x28\xb5\x2f\xfd")
        if start < 0:
            return event
        inner = events_of(zstandard.ZstdDecompressor().decompressobj().decompress(event[start:-4]), 0)
        data = b"".join(damage_some(inner, dice, is_inside=True))
        if dice.random() < 0.5:
            return event[:19] + b"\0" + data + event[-4:]
        fields = b"\2\1\0\3\x09\xfe" + len(data).to_bytes(8, "little") + b"\0"
        return event[:19] + fields + zstandard.ZstdCompressor().compress(data) + event[-4:]
    for start in range(24, len(event)):
        width = next((n for n in (1, 2, 3, 4) if event[start - 1 - n] == 0x80 | n), 0)
        if event[start] == 0x78 and width:
            data = bytearray(zlib.decompressobj().decompress(event[start:]))
            for _ in range(dice.randrange(1, 4)):
                at = dice.randrange(len(data) + 1)
                data[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(4))
            head = bytes([0x83]) + len(data).to_bytes(3, "big")
            return event[: start - 1 - width] + head + zlib.compress(data) + event[-4:]
    return event


def damage_some(events: list[bytes], dice: random.Random, *, is_inside: bool) -> list[bytes]:
    """One to three events changed, lost, doubled or moved."""
    is_sealed = not is_inside and dice.random() < 0.7
    for _ in range(dice.randrange(1, 4)):
        if not events:
            break
        i = dice.randrange(len(events))
        what = dice.randrange(10)
        if what == 0:
            del events[i]
        elif what == 1:
            events.insert(i, events[dice.randrange(len(events))])
        elif what == 2:
            j = dice.randrange(len(events))
            events[i], events[j] = events[j], events[i]
        else:
            event = bytearray(events[i])
            is_packed = event[4:5] in _PACKED and not is_inside and dice.random() < 0.7
            with suppress(zlib.error, zstandard.ZstdError):  # it may have its damage already
                event = (_damage_inside if is_packed else _damage)(event, dice)
            event = bytes(event)
            if (is_sealed or is_inside) and (is_packed or dice.random() < 0.8):
                event = event[:9] + len(event).to_bytes(4, "little") + event[13:]
            events[i] = _sealed(event) if is_sealed else event
    return placed(events) if is_sealed else events


def of_other_kinds(raw: bytes, known: set[int]) -> Iterator[bytes]:
    """The log with one event called another kind: the first of each kind, each that the kernel knows.

    known: kinds that need not be called anything else; gets those of this log.
    """
    events = events_of(raw)
    kinds = [event[4] for event in events]
    for i in sorted({kinds.index(kind) for kind in kinds if kind not in known}):
        for other in _KNOWN:
            event = events[i][:4] + bytes([other]) + events[i][5:]
            yield b"\xfebin" + b"".join(placed([*events[:i], event, *events[i + 1 :]]))
    known.update(kinds)


def damaged(raw: bytes, dice: random.Random) -> bytes:
    """A log in which one to three events were damaged; most of them with checksums that are right. Or one that is cut,
    or both.
    """
    how = dice.random()
    if how < 0.1:
        return raw[: dice.randrange(len(raw))]
    whole = b"\xfebin" + b"".join(damage_some(events_of(raw), dice, is_inside=False))
    return whole[: dice.randrange(len(whole))] if how < 0.2 else whole


# --- reading ---


def outcome(log: Log, raw: bytes, guard: int, walls: Walls | None = None, run_events_max: int = 64) -> tuple[str, ...]:
    """What reading gives, in words. The bytes lie in front of a guard that must not matter.

    walls: rows are decoded too, between those.
    """
    memory = np.full(len(raw) + GUARD, guard, np.uint8)
    memory[: len(raw)] = np.frombuffer(raw, np.uint8)
    limits = {"run_events_max": run_events_max, "event_bytes_max": 1 << 20, "inflate_bytes_max": 1 << 20}
    scanning = scanner(log.kind, log.scheme, **limits)
    words: list[str] = []
    try:
        scanning.open_file("binlog.000001")
        scanning.feed(memory[: len(raw)])
        steps = 0
        while (item := scanning.next()) is not None:
            words.append(_said(item))
            if walls is not None and isinstance(item, LogRun):
                words += _decoded(item, scanning.tables, walls)
            steps += 1
            assert steps < 10_000
        if scanning.position.offset != len(raw):
            words.append("unfinished")
    except DatabusError as error:
        words.append(f"{type(error).__name__}: {error}")
    if words and words[-1].startswith("CorruptData"):
        assert re.search(r"binlog\.\d+ at \d+", words[-1])
    return tuple(words)


def _said(item: object) -> str:
    if not isinstance(item, LogRun):
        return str(item)
    images = [
        item.buffer[a:b].tobytes() for a, b in zip(item.event_start.tolist(), item.event_end.tolist(), strict=True)
    ]
    for a, b in zip(item.event_start.tolist(), item.event_end.tolist(), strict=True):
        assert 0 <= a < b <= len(item.buffer)
        assert item.place(a)
    return str((item.txids(0, len(item)).to_pylist(), item.scn.tolist(), item.end_file_offset.tolist(), images))


def _decoded(run: LogRun, tables: list[TableMap], walls: Walls) -> Iterator[str]:
    """The rows of a run by the table maps of the log itself, whose columns are named if they have no names."""
    with walls.built():
        buffer = guarded(run.buffer.tobytes(), is_behind=walls.is_behind)
        for slot in np.unique(run.event_slot).tolist():
            mine, table = np.flatnonzero(run.event_slot == slot), tables[slot]
            names = table.metadata.names or tuple(f"c{i}" for i in range(len(table.types)))
            try:
                definition = from_table_map(replace(table, metadata=replace(table.metadata, names=names, key=None)))
                plan = make_plan(definition, table.types, table.metas, zero_dates="null", invalid_text="replace")
                kinds, starts, ends = run.event_kind[mine], run.event_start[mine], run.event_end[mine]
                for part in decode(plan, buffer, kinds, starts, ends, run.place):
                    of_part = mine[part.first_event :][: len(part.images_per_event)]
                    arrays = part.arrays
                    if part.images:
                        before, of = np.zeros(len(of_part), np.int64), run.event_transaction[of_part]
                        arrays = arrays + bus_arrays(
                            part, before, of, scns=run.scn, commits_us=run.commit_us, txids=run.txids
                        )
                    for array in arrays:
                        array.validate(full=True)
                    yield f"{table.source}: {part.images} images"
            except DatabusError as error:
                yield f"{table.source}: {type(error).__name__}: {error}"
