"""One table in the stores, for whoever looks back: where it was at a time, and what happened to it since.

Start with `TablePast.of`, then `place` and `items`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa

from databus.bootstrap._config import BootstrapConfig
from databus.bootstrap._kept_stores import Look, PhysicalStores
from databus.core import (
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    InputError,
    Pair,
    PositionPurged,
    ServiceUnavailable,
    UnknownSource,
)
from databus.filters import nearest
from databus.flow import TableControl, TableRows
from databus.schema import TableSchema
from databus.stores import LogSelection, control_of, definition_at, note_physicals, under_own_names, user_rows

_SEQ_MAX: Final = (1 << 63) - 1  # also above what the bus itself has made at an SCN


@dataclass(frozen=True)
class Moment:
    """What a user says for when: an SCN, which is included, or a time."""

    written: str
    scn: int | None = None
    at_us: int | None = None
    """Microseconds since 1970."""


@dataclass(frozen=True)
class TablePast:
    """One table, as its stores are at one moment."""

    config: BootstrapConfig
    physical: str
    source: str
    """`db.table`."""
    look: Look

    @classmethod
    def all(cls, config: BootstrapConfig) -> "list[Self]":
        """All tables that there are states of."""
        looks = {name: PhysicalStores(config.root, name).look() for name in note_physicals(config.root)}
        sources_of = {
            physical: sorted({name for state in look.kept.states for name in state.tables})
            for physical, look in looks.items()
        }
        for physical, sources in sources_of.items():
            looks[physical].hold(sources)
        return [cls(config, name, source, looks[name]) for name, sources in sources_of.items() for source in sources]

    @classmethod
    def of(cls, config: BootstrapConfig, name: str) -> Self:
        """By its full name. Raises `UnknownSource`, and `ServiceUnavailable` while nothing is kept."""
        physicals = note_physicals(config.root)
        if not physicals:
            raise ServiceUnavailable(f"{config.root}: nothing is kept yet; `databus bootstrap run` fills the stores")
        physical, _, source = name.partition("/")
        looks = {owner: PhysicalStores(config.root, owner).look() for owner in physicals}
        known = [f"{owner}/{table}" for owner, look in looks.items() for table in look.schemas.ids()]
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {near}?" if near else f"; there are {', '.join(sorted(known)[:20])}"
            raise UnknownSource(f"the stores hold no table called {name[:200]!r}{hint}")
        looks[physical].hold([source])
        return cls(config, physical, source, looks[physical])

    @property
    def name(self) -> str:
        """Its full name."""
        return f"{self.physical}/{self.source}"

    @property
    def end(self) -> Pair:
        """How far the log store has come."""
        return self.look.kept.head.position.pair

    def definition_at(self, pair: Pair) -> TableSchema:
        """Its definition at a pair."""
        return self._definition_at(pair) or self.definition

    def _definition_at(self, pair: Pair) -> TableSchema | None:
        return definition_at(self.source, pair, self.look.kept.controls(self.source), self.look.schemas)

    @property
    def definition(self) -> TableSchema:
        """Its newest definition."""
        definition = self.look.schemas.definition_now(self.source)
        if definition is None:
            raise UnknownSource(f"{self.name}: the notes of the stores lack its definition")
        return definition

    def last_at(self, moment: Moment) -> Pair:
        """Its last change at a moment or before, or a pair behind that which no change of it lies between.

        Raises `ServiceUnavailable` for what the log store has not reached.
        """
        if moment.scn is not None:
            if moment.scn > self.end[0]:
                raise ServiceUnavailable(
                    f"{moment.written}: the log store of {self.physical} has come to SCN {self.end[0]}; ask again later"
                )
            return min((moment.scn, _SEQ_MAX), self.end)
        last = self.look.log.last_until(self.source, moment.at_us or 0)
        if last is not None:
            return min(last, self.end)
        head = self.look.kept.head
        if head.cut is None or self.goes_back_to_begin:
            return 0, 0
        if (moment.at_us or 0) < head.cut.last_us:
            raise self.purged(moment.written)
        return head.cut.at

    def before(self, moment: Moment) -> Pair:
        """Its last change before a moment, so that what happened at the moment itself comes behind it."""
        if moment.scn is not None:
            return max(moment.scn - 1, 0), _SEQ_MAX
        last = self.look.log.last_until(self.source, (moment.at_us or 0) - 1)
        return (0, 0) if last is None else last

    def check_kept(self, after: Pair, what: str) -> None:
        """Whether the log store holds all that came after a pair. Raises `PositionPurged`."""
        if self.is_below_log(after):
            raise self.purged(what)

    def is_below_log(self, pair: Pair) -> bool:
        """Whether something of it that came after a pair is not in the log store any more."""
        return pair < self.look.kept.head.low and not self.goes_back_to_begin

    def purged(self, what: str) -> PositionPurged:
        """The error of what is below the log store: it says what is held."""
        at = self.look.kept.head.low[0]
        states = [state.position.scn for state in self.look.kept.states if self.source in state.tables]
        older = ", ".join(str(scn) for scn in states if scn <= at)
        also = f"; of the time before there are states at SCN {older}" if older else ""
        return PositionPurged(
            f"{self.name}: {what} is before the log store begins, which is at SCN {at}{also}",
            physical=self.physical,
            oldest=at,
        )

    @property
    def goes_back_to_begin(self) -> bool:
        """Whether the log store holds all that there ever was of it: then it holds how it was first seen."""
        controls = self.look.kept.controls(self.source)
        return bool(controls) and controls[0].begins_table

    def rows_between(self, after: Pair, until: Pair) -> int:
        """At most so many rows of it, with controls, lie between two pairs."""
        return self.look.log.count(self.source, after, until)

    def items(self, after: Pair, until: Pair) -> Iterator[TableRows | TableControl]:
        """What happened to it between two pairs, in order, a bounded number of rows at a time."""
        table = self._definition_at(after)
        for piece in self.look.stores.pieces({self.source: LogSelection.ALL}, after, until):
            rows = piece[self.source]
            is_control = np.zeros(rows.num_rows, bool)
            if CONTROL in rows.column_names:
                is_control = np.asarray(rows.column(CONTROL).is_valid())
            start = 0
            for at in (*np.flatnonzero(is_control).tolist(), rows.num_rows):
                if at > start:
                    if table is None:
                        raise InputError(f"{self.name}: the log store has rows of it, and no definition of them")
                    own = under_own_names(table, rows.slice(start, at - start))
                    yield TableRows(table, user_rows(table, own))
                if at < rows.num_rows:
                    control = _control_at(self.source, rows, at)
                    table = self._definition_at(control.pair)
                    yield control
                start = at + 1


def _control_at(source: str, rows: pa.Table, at: int) -> TableControl:
    row = rows.slice(at, 1).select([COMMIT_VERSION, SEQ, CONTROL]).to_pylist()[0]
    us = rows.column(COMMIT_TIMESTAMP)[at].cast(pa.int64()).as_py()
    control = control_of(source, (row[COMMIT_VERSION], row[SEQ]), row[CONTROL], f"the log store, {source}")
    return TableControl(control.table, control.kind, control.pair, control.body, us or 0)
