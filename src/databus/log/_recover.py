"""Recovery: from what a crash left of a log to a log that ends at its published end.

Only the newest segment is read, and of it only what lies behind the durable mark. The log is its own checkpoint: it is
cut back to the end of its last whole transaction; where that lies in an earlier segment, the later ones are deleted.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from databus.core import ControlKind, CorruptData
from databus.disk import sync_folder
from databus.log._mark import NAME as MARK_NAME
from databus.log._mark import LogMark
from databus.log._reader import FrameReader
from databus.log._segment import End, Segment, SegmentFile, SegmentHeader, segment_numbers, segment_path
from databus.wire import COMMIT, CONTROL, MAGIC, Commit, Frame

_SEARCHED_BYTES: Final = 1 << 20
_WAY_OUT: Final = (
    f"before it away, and the log begins after it; or it, those after it and {MARK_NAME}, and the source is asked "
    f"for the rest again (it says so if it no longer has it)"
)


@dataclass(frozen=True)
class Recovered:
    """A log that ends at `end`: its segments, the last of which is open and ends at `offset`; the schemas in force."""

    segments: tuple[Segment, ...]
    offset: int
    end: End
    in_force: Mapping[int, int]


def recover(folder: Path, mark: LogMark | None) -> Recovered | None:
    """Cut the log in `folder` back to its published end; None if there is no log yet.

    Raises `CorruptData` naming file and offset if something that was durable is not there any more.
    """
    for left in (*folder.glob("*.tmp"), *(p for p in folder.glob("*.idx") if not p.with_suffix(".seg").exists())):
        left.unlink()
    segments = _load_segments(folder, mark)
    if mark is not None and segments and (mark.log != segments[-1].header.log or mark.segment < segments[0].number):
        mark = None  # another log's, or so old that retention has passed it: it is never fsynced
    if mark is not None:
        _check_mark(folder, segments, mark)
    if not segments:
        return None
    _remove_untrue_head(segments)
    end, in_force = _scan(segments[-1], mark)
    return Recovered(*cut_segments(segments, end), end, in_force)


def _load_segments(folder: Path, mark: LogMark | None) -> list[Segment]:
    numbers = segment_numbers(folder)
    segments: list[Segment] = []
    for number in numbers:
        path = segment_path(folder, number)
        if segments and number != segments[-1].number + 1:
            missing = segment_path(folder, segments[-1].number + 1)
            raise CorruptData(
                f"{missing}: this segment is missing between others; restore it, or move those before it away, and "
                f"the log begins after it"
            )
        try:
            header = SegmentHeader.load(path)
        except CorruptData as error:
            was_durable = _holds_frames(path) if mark is None else mark.segment >= number
            if number != numbers[-1] or was_durable:
                raise CorruptData(f"{error}; restore the file from a copy, or move it and those {_WAY_OUT}") from None
            path.unlink()  # begun, and nothing behind its header was ever durable
            sync_folder(folder)
            break
        if header.number != number or (segments and header.log != segments[-1].header.log):
            raise CorruptData(
                f"{path} at 0: this is segment {header.number} of log {header.log}; it is in the wrong place"
            )
        if segments:
            segments[-1].sealed_bytes = header.previous_bytes
        segments.append(Segment(path, header, None))
    return segments


def _remove_untrue_head(segments: list[Segment]) -> None:
    """Remove the last segment if it holds nothing and its head is untrue: more was appended to the segment before it.

    So it was begun and could not be used, by a version of databus that then left it there.
    """
    if len(segments) == 1:
        return
    before, last = segments[-2:]
    if last.path.stat().st_size <= last.first_offset and before.path.stat().st_size > last.header.previous_bytes:
        last.path.unlink()
        sync_folder(last.path.parent)
        segments.pop()
        before.sealed_bytes = None


def _holds_frames(path: Path) -> bool:
    """Whether the start of a frame stands anywhere in the file."""
    with path.open("rb") as file:
        tail = b""
        while piece := file.read(_SEARCHED_BYTES):
            if MAGIC in tail + piece:
                return True
            tail = piece[-len(MAGIC) :]
    return False


def _check_mark(folder: Path, segments: Sequence[Segment], mark: LogMark) -> None:
    path = segment_path(folder, mark.segment)
    if not segments or mark.segment > segments[-1].number:
        raise CorruptData(
            f"{path}: this segment was durable up to {mark.offset} and is not there; restore it from a copy, or move "
            f"{folder / MARK_NAME} away, and the source is asked for the rest again (it says so if it no longer has it)"
        )
    size = path.stat().st_size
    if size < mark.offset:
        raise CorruptData(
            f"{path} at {size}: the file ends here, and was durable up to {mark.offset}; restore it from a copy, or "
            f"move {folder / MARK_NAME} away, and the source is asked for the rest again (it says so if it no longer "
            f"has it)"
        )


def _scan(segment: Segment, mark: LogMark | None) -> tuple[End, Mapping[int, int]]:
    """The end of the last whole transaction, and the schemas in force there, reading from the mark on."""
    file = SegmentFile(segment.path, os.O_RDONLY)
    if mark is not None and mark.segment == segment.number:
        end = read_end(file, mark.segment, mark.offset, mark.commit_offset, mark.max_commit_us)
        forces = Forces(mark.in_force, {})
        offset, max_commit_us = mark.offset, mark.max_commit_us
    else:
        header = segment.header
        end, offset, max_commit_us = header.published, segment.first_offset, header.before.max_commit_us
        forces = Forces(header.in_force, header.undo)
    with FrameReader(file, file.size(), with_bodies=True) as reader:
        seen: list[tuple[int, int]] = []
        while True:
            try:
                header_ = reader.header(offset)
                reader.check_body(offset, header_)
            except CorruptData:
                break  # the torn tail: behind the mark, so it was never promised to anybody
            if header_.kind == COMMIT:
                max_commit_us = max(max_commit_us, header_.commit_us)
                forces.use(seen)
                seen = []
                if header_.publishes:
                    commit = Commit.from_header(header_, reader.place(offset))
                    end = End(segment.number, offset + header_.frame_bytes, offset, commit, max_commit_us)
                    forces.publish()
            else:
                fingerprint = header_.fingerprint
                if header_.kind == CONTROL and is_drop(reader, offset):
                    fingerprint = 0
                seen.append((header_.source_id, fingerprint))
            offset += header_.frame_bytes
    forces.cut_back()
    return end, forces.in_force


def is_drop(reader: FrameReader, offset: int) -> bool:
    """Whether the control frame at `offset` says that its table is gone."""
    header = reader.header(offset)
    frame = Frame(header, memoryview(reader.body(offset, header)), reader.place(offset))
    return frame.control.get("kind") == ControlKind.DROP


def read_end(file: SegmentFile, number: int, offset: int, commit_offset: int, max_commit_us: int) -> End:
    """The end of a group whose places are known, from its commit frame. Raises `CorruptData` if that is not there."""
    with FrameReader(file, offset, with_bodies=False) as reader:
        header = reader.header(commit_offset)
        if header.kind != COMMIT or commit_offset + header.frame_bytes != offset:
            raise CorruptData(f"{reader.place(commit_offset)}: no commit frame up to {offset} stands here")
        return End(
            number, offset, commit_offset, Commit.from_header(header, reader.place(commit_offset)), max_commit_us
        )


class Forces:
    """The schemas in force at the log's end, and how to take back what an unfinished transaction changed in them.

    A fingerprint of 0 stands for a table that was dropped. Both mappings are replaced, never changed in place.
    """

    __slots__ = ("in_force", "undo")

    def __init__(self, in_force: Mapping[int, int], undo: Mapping[int, int]) -> None:
        self.in_force = in_force
        self.undo = undo

    def use(self, seen: Sequence[tuple[int, int]]) -> None:
        """A group has frames of these (source id, fingerprint)."""
        for source_id, fingerprint in seen:
            old = self.in_force.get(source_id, 0)
            if old != fingerprint:
                self.in_force = {**self.in_force, source_id: fingerprint}
                self.undo = {source_id: old, **self.undo}

    def publish(self) -> None:
        """The transaction is whole."""
        self.undo = {}

    def published(self) -> Mapping[int, int]:
        """Those at the end of the last whole transaction."""
        return {**self.in_force, **self.undo} if self.undo else self.in_force

    def cut_back(self) -> None:
        """The transaction is taken back."""
        self.in_force, self.undo = self.published(), {}


def cut_segments(segments: Sequence[Segment], end: End) -> tuple[tuple[Segment, ...], int]:
    """Make `end` the end of the log's files, durably: delete later segments, newest first, and cut the last one left.

    A segment that begins right behind `end` is kept. Returns the segments left, and the length of the last, which is
    open again.
    """
    kept = tuple(
        segment for segment in segments if segment.number <= end.segment or segment.header.before.place == end.place
    )
    if not kept or kept[-1].number < end.segment:
        raise CorruptData(
            f"{segments[0].path}: the last whole transaction was in segment {end.segment}, which is not here"
        )
    last = kept[-1]
    length = last.first_offset if last.header.before.place == end.place else end.offset
    size = last.path.stat().st_size
    if size < length:
        raise CorruptData(f"{last.path} at {size}: the file ends here; its last whole transaction ends at {length}")
    for segment in reversed(segments[len(kept) :]):
        segment.path.unlink()
        segment.index_path().unlink(missing_ok=True)
        sync_folder(last.path.parent)
    last.index_path().unlink(missing_ok=True)
    last.sealed_bytes = None
    with last.path.open("rb+") as file:
        if size > length:
            file.truncate(length)
        os.fsync(file.fileno())
    return kept, length
