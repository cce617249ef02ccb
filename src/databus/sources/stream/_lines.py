"""Bytes to lines, and what is wrong with a line. No I/O; lines are columns."""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

Int = npt.NDArray[np.int64]
_END: Final = b"\n"
_BLANK: Final = r"^[ \t\r]*$"


class Lines(NamedTuple):
    """Whole lines."""

    starts: Int
    """Offset in the stream where each line begins."""
    texts: pa.LargeBinaryArray
    problems: Mapping[int, str]
    """By index, the problem of each line that is too long; such a line is cut."""
    end: int
    """Offset behind the lines."""


class LineBuffer:
    """Is given the bytes of a stream as they come, and gives its lines. Keeps at most one line's `line_bytes_max`.

    offset: where the line begins that is not whole yet.
    """

    def __init__(self, offset: int, line_bytes_max: int) -> None:
        self.offset = offset
        self._limit = line_bytes_max
        self._kept = b""
        self._dropped = 0  # of a line that is too long

    def feed(self, content: bytes) -> Lines:
        """The lines that end in this."""
        if not self._dropped:
            return self._split(self._kept + content)
        line, end, after = content.partition(_END)
        self._dropped += len(line)
        if not end:
            return self._none()
        return _joined_lines(self._of_kept(len(_END)), self._split(after))

    def finish(self) -> Lines:
        """The last line, where the stream has ended without an end of that."""
        return self._of_kept(0) if self._kept else self._none()

    def _split(self, content: bytes) -> Lines:
        whole, end, rest = content.rpartition(_END)
        lines = self._none()
        if end:
            texts = pc.split_pattern(pa.array([whole], pa.large_binary()), pattern=_END).flatten()
            lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
            ends = np.cumsum(lengths + len(_END))
            starts = self.offset + ends - lengths - len(_END)
            self.offset += int(ends[-1])
            too_long = {int(at): self._too_long(int(lengths[at])) for at in np.flatnonzero(lengths > self._limit)}
            if too_long:
                texts = pc.binary_slice(texts, 0, self._limit)
            lines = Lines(starts, texts, too_long, self.offset)
        self._kept, self._dropped = rest[: self._limit], max(len(rest) - self._limit, 0)
        return lines

    def _of_kept(self, ending: int) -> Lines:
        """The line that was kept, which ends here."""
        start, length = self.offset, len(self._kept) + self._dropped
        problems = {0: self._too_long(length)} if self._dropped else {}
        text, self._kept, self._dropped = self._kept, b"", 0
        self.offset += length + ending
        return Lines(np.array([start], np.int64), pa.array([text], pa.large_binary()), problems, self.offset)

    def _none(self) -> Lines:
        return Lines(np.zeros(0, np.int64), pa.array([], pa.large_binary()), {}, self.offset)

    def _too_long(self, length: int) -> str:
        return f"it has {length} bytes, more than line_bytes_max={self._limit}"


def _joined_lines(first: Lines, others: Lines) -> Lines:
    count = len(first.starts)
    problems = {**first.problems, **{at + count: reason for at, reason in others.problems.items()}}
    texts = pa.concat_arrays([first.texts, others.texts])
    return Lines(np.concatenate([first.starts, others.starts]), texts, problems, others.end)


class Texts(NamedTuple):
    """Lines as text."""

    starts: Int
    texts: pa.StringArray
    problems: Mapping[int, str]
    """By index, the problem of each wrong line; such a line holds what of it is text."""

    def chosen(self, places: Int) -> "Texts":
        """Some of them."""
        at = {int(place): number for number, place in enumerate(places)}
        problems = {at[place]: reason for place, reason in self.problems.items() if place in at}
        return Texts(self.starts[places], self.texts.take(pa.array(places)), problems)


def texts_of(lines: Lines, form: str) -> Texts:
    """Lines in UTF-8, checked to be JSON where `form` is that; without blank ones then."""
    problems = dict(lines.problems)
    try:
        texts = lines.texts.cast(pa.string())
    except pa.ArrowInvalid:
        values = lines.texts.to_pylist()
        for place, value in enumerate(values):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                problems.setdefault(place, f"it is not text in UTF-8: {error.reason} at byte {error.start} of it")
        texts = pa.array([value.decode(errors="replace") for value in values], pa.string())
    lines_read = Texts(lines.starts, texts, problems)
    if form != "json" or not len(texts):
        return lines_read
    is_blank = pc.match_substring_regex(texts, _BLANK).to_numpy(zero_copy_only=False)
    lines_read = lines_read.chosen(np.flatnonzero(~is_blank)) if is_blank.any() else lines_read
    return lines_read._replace(problems={**_not_json(lines_read.texts), **lines_read.problems})


def _not_json(texts: pa.StringArray) -> dict[int, str]:
    """Arrow reads all lines at once as JSON objects; if one is something else, they are read one by one."""
    if not len(texts):
        return {}
    if pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(pc.utf8_rtrim(texts, "\r "), "}"))).as_py():
        run = _joined(texts)
        try:
            read = pj.read_json(
                pa.BufferReader(run),
                pj.ReadOptions(use_threads=False, block_size=max(run.size, 1)),
                pj.ParseOptions(explicit_schema=pa.schema([]), unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid:
            read = None
        if read is not None and read.num_rows == len(texts):
            return {}
    problems = {}
    for place, text in enumerate(texts.to_pylist()):
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            problems[place] = f"it is not JSON: {error}"
    return problems


def _joined(texts: pa.StringArray) -> pa.Buffer:
    lists = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return pc.binary_join(lists, "\n")[0].as_buffer()
