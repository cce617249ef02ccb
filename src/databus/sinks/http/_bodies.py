"""Bodies of requests: the changes of a batch as JSON, in commit order over all tables, cut by rows and bytes.

The same batch makes the same bodies, to the byte: where a format says when a message was made, it is when the newest of
its changes was committed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQ,
    ChangeType,
    ConfigError,
    Pair,
    UnrepresentableValue,
    name_parts,
)
from databus.flow import ChangeBatch, Int, RowMask, TableControl, TableRows, as_captured, before_updates, pairs_of
from databus.formats import (
    BigIntegers,
    DebeziumForm,
    control_line,
    messages_in,
)
from databus.schema import TableSchema

_BODY_TYPES: Final = {"array": "application/json", "lines": "application/x-ndjson", "object": "application/json"}
_EVENT_TYPES: Final = {
    "array": "application/cloudevents-batch+json",
    "lines": "application/x-ndjson",
    "object": "application/cloudevents+json",
}
_NO_TOMBSTONES: Final = DebeziumForm(tombstones=False)

Holds = Callable[[Int, Int], RowMask]
"""Which messages are held back, by the items of the batch and the rows in them that they are of."""
_BY_ROW: Final = frozenset({"own", "cloudevents"})  # the others make one message of the two rows of an update


@dataclass(frozen=True)
class BodyRequest:
    """What is sent at once: some of the messages that go to an address."""

    bodies: "_Bodies"
    begin: int
    end: int

    @property
    def url(self) -> str:
        """Where it goes."""
        return self.bodies.url

    @property
    def body(self) -> bytes:
        """The messages, in their form."""
        return self.bodies.body(self.begin, self.end)

    @property
    def first(self) -> Pair:
        """The pair of its first message."""
        return self.bodies.part.pair(self.begin)

    @property
    def last(self) -> Pair:
        """The pair of its last message."""
        return self.bodies.part.pair(self.end - 1)

    @property
    def messages(self) -> int:
        """How many it has."""
        return self.end - self.begin

    def halves(self) -> "tuple[BodyRequest, BodyRequest]":
        """Two in its place; of more than one message."""
        middle = (self.begin + self.end) // 2
        return replace(self, end=middle), replace(self, begin=middle)

    @property
    def origin(self) -> tuple[int, int]:
        """Which item of the batch its first message is of, and which row of it; -1 for a control."""
        return int(self.bodies.part.items[self.begin]), int(self.bodies.part.rows[self.begin])

    def without(self, holds: Holds) -> "list[BodyRequest]":
        """Those in its place, in order, that have the messages which are not held back."""
        part = self.bodies.part
        is_held = holds(part.items[self.begin : self.end], part.rows[self.begin : self.end])
        edges = np.flatnonzero(np.diff(np.concatenate([[True], is_held, [True]]))) + self.begin
        return [replace(self, begin=begin, end=end) for begin, end in edges.reshape(-1, 2).tolist()]


@dataclass(frozen=True)
class BodyForm:
    """How changes become bodies; travels to tasks."""

    url: str
    """With `{physical}`, `{db}` and `{table}` for a table's names."""
    format: str = "own"
    body: str = "array"
    big_integers: BigIntegers = BigIntegers.NUMBER
    controls: bool = False
    """Whether the lines of controls are among the rows; in our own format alone."""
    rows_max: int = 1_000
    bytes_max: int = 1 << 20
    """Of a body; a larger message has one of its own."""
    column: str | None = None
    """The column whose text is the message, in the place of JSON; in lines alone."""

    @property
    def content_type(self) -> str:
        """Of the requests."""
        return (_EVENT_TYPES if self.format.startswith("cloudevents") else _BODY_TYPES)[self.body]

    def requests(
        self, batch: ChangeBatch, takes_controls_of: Callable[[TableSchema], bool], holds: Holds | None = None
    ) -> Iterator[BodyRequest]:
        """The requests of a batch, in order, without what is held back."""
        by_url: dict[str, list[_BodyPart]] = {}
        for number, item in enumerate(batch.items):
            source = item.table.source
            if isinstance(item, TableRows):
                part = self._rows(batch.physical, number, item)
                part = part if holds is None else part.take(np.flatnonzero(~holds(part.items, part.rows)))
            elif self.controls and takes_controls_of(item.table):
                part = self._control(f"{batch.physical}/{source}", item)
            else:
                continue
            by_url.setdefault(self.url_of(batch.physical, source), []).append(part)
        for url, parts in by_url.items():
            yield from self._cut(url, _in_order(parts))

    def url_of(self, physical: str, source: str) -> str:
        """Where a table's changes are sent."""
        database, table = name_parts(source)
        url = self.url
        for name, value in (("physical", physical), ("db", database), ("table", table)):
            url = url.replace(f"{{{name}}}", quote(value, safe=""))
        return url

    def _rows(self, physical: str, number: int, item: TableRows) -> "_BodyPart":
        if self.column is not None:
            return _texts(number, item, self.column)
        rows = as_captured(item.table, item.rows)
        rows = rows if self.format in _BY_ROW else with_whole_updates(rows)
        (batch,) = rows.combine_chunks().to_batches(max_chunksize=max(rows.num_rows, 1))
        newest: int | None = pc.max(batch.column(COMMIT_TIMESTAMP)).cast(pa.int64()).as_py()
        made = messages_in(
            self.format,
            item.table,
            batch,
            physical=physical,
            made_us=newest or 0,
            form=_NO_TOMBSTONES,
            big_integers=self.big_integers,
        )
        scns, seqs = (batch.column(name).take(made.rows).to_numpy() for name in (COMMIT_VERSION, SEQ))
        return _BodyPart(made.values, scns, seqs, np.full(len(scns), number), made.rows.to_numpy())

    def _control(self, name: str, control: TableControl) -> "_BodyPart":
        line = control_line(name, control.body, control.pair, self.big_integers).encode()
        scn, seq = (np.array([number], np.int64) for number in control.pair)
        nowhere = np.array([-1])
        return _BodyPart(pa.array([line], pa.large_binary()), scn, seq, nowhere, nowhere)

    def _cut(self, url: str, part: "_BodyPart") -> Iterator[BodyRequest]:
        """Requests of messages one after the other."""
        count = len(part.values)
        if not count:
            return
        bodies = _Bodies.of(url, part, self.body)
        rows_max = 1 if self.body == "object" else self.rows_max
        begin = 0
        while begin < count:
            fits = int(np.searchsorted(bodies.ends, bodies.ends[begin] + self.bytes_max - 1, "right")) - 1
            end = min(max(fits, begin + 1), begin + rows_max, count)
            yield BodyRequest(bodies, begin, end)
            begin = end


@dataclass(frozen=True)
class _Bodies:
    """Messages side by side in memory, a separator of one byte behind each."""

    url: str
    part: "_BodyPart"
    opens: bytes
    closes: bytes
    ends: Int
    """Where each begins, and the end."""
    memory: pa.Buffer

    @classmethod
    def of(cls, url: str, part: "_BodyPart", form: str) -> "_Bodies":
        """The bodies of messages, in the form of this name."""
        opens, between, closes = {"array": (b"[", b",", b"]"), "lines": (b"", b"\n", b"\n")}.get(form, (b"", b" ", b""))
        pieces = pc.binary_join_element_wise(
            part.values, *(pa.scalar(text, pa.large_binary()) for text in (between, b""))
        )
        _, places, memory = pieces.buffers()
        ends = np.frombuffer(places, np.int64)[pieces.offset : pieces.offset + len(pieces) + 1]
        return cls(url, part, opens, closes, ends, memory)

    def body(self, begin: int, end: int) -> bytes:
        """Of these messages."""
        inside: bytes = self.memory[self.ends[begin] : self.ends[end] - 1].to_pybytes()
        return self.opens + inside + self.closes


class _BodyPart(NamedTuple):
    """Messages, their pairs, and of which item of the batch and which row of it each is; -1 for a control."""

    values: pa.LargeBinaryArray
    scns: Int
    seqs: Int
    items: Int
    rows: Int

    def pair(self, place: int) -> Pair:
        """Of a message."""
        return int(self.scns[place]), int(self.seqs[place])

    def take(self, places: Int) -> "_BodyPart":
        """The messages at these places."""
        if len(places) == len(self.scns) and (np.diff(places) == 1).all():
            return self
        values, *others = self
        return _BodyPart(values.take(pa.array(places)), *(other[places] for other in others))


def _texts(number: int, item: TableRows, name: str) -> _BodyPart:
    """A column's text, of all rows but those from before an update; empty where it is null."""
    if name not in item.rows.column_names:
        raise ConfigError(f"{item.table.source}: has no column {name}, which `column` names")
    places = np.flatnonzero(~before_updates(item.rows)[0])
    rows = item.rows.take(pa.array(places)).combine_chunks()
    (text,) = rows.column(name).cast(pa.large_string()).chunks or [pa.array([], pa.large_string())]
    if pc.any(pc.match_substring(text, "\n")).as_py():
        raise UnrepresentableValue(
            f"{item.table.source}: a text of column {name} has a line feed in it, so it is no line. Make another text "
            f"of it by a filter (`sql`), or have lines of JSON"
        )
    texts = pc.fill_null(text, "").cast(pa.large_binary())
    return _BodyPart(texts, *pairs_of(rows), np.full(len(places), number), places)


def _in_order(parts: Sequence[_BodyPart]) -> _BodyPart:
    """All messages in the order of their pairs; two of one row stay as they stand."""
    if len(parts) == 1:
        return parts[0]
    values, *others = zip(*parts, strict=True)
    whole = _BodyPart(pa.concat_arrays(values), *map(np.concatenate, others))
    return whole.take(np.lexsort((whole.seqs, whole.scns)))


def with_whole_updates(rows: pa.Table) -> pa.Table:
    """Rows in which a row before an update is a delete where the row after it is in another bucket of keys."""
    is_pre, is_followed = before_updates(rows)
    alone = is_pre & ~is_followed
    if not alone.any():
        return rows
    made = pc.if_else(pa.array(alone), ChangeType.DELETE.label, rows.column(CHANGE_TYPE))
    return rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, made)
