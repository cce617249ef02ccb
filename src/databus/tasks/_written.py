"""Up to where the rows of some tables are in a target, whichever stream brought them.

A stream that goes on from several others begins where the least of them stands. What the others brought beyond that is
in the target already: these statements say so, table by table, until the stream has passed them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from databus.core import Pair, SourceCheckpoint, UnsupportedFeature
from databus.filters import Selection, TableChoice, matches, selects
from databus.tasks._batch import ChangeBatch, TableControl, TableRows
from databus.tasks._pairs import rows_above
from databus.wire import is_inside_transaction, is_of_other_log


@dataclass(frozen=True)
class Written:
    """What a stream has written: all up to `at` of the tables of `of` that one of the selections lets through; without
    any, of all of them.
    """

    of: str
    selections: tuple[Selection, ...]
    at: SourceCheckpoint

    def has(self, name: str) -> bool:
        """Whether it is about the table of this full name."""
        return brings(self.of, self.selections, name)

    def to_json(self) -> dict[str, Any]:
        """As ledgers and targets store it."""
        return {"of": self.of, "choice": selections_json(self.selections), "at": self.at.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Self:
        """Read what `to_json` made. Raises `MalformedRequest`, `ValueError`, `KeyError`, `TypeError`."""
        return cls(str(value["of"]), selections_of(value["choice"]), SourceCheckpoint.from_json(value["at"], where))


@dataclass(frozen=True)
class StreamBefore:
    """A stream from which another one goes on. written: as the ledger says, which may not know of all; None in ledgers
    of old. is_branch: whether others of these have the other rows of the same tables, as branches of a route have.
    is_part: whether others had rows of the same tables, and not all of them are among these; what it wrote then says
    nothing of a table. is_current: whether it is still written, with other tables perhaps.
    """

    name: str
    written: Written | None = None
    is_branch: bool = False
    is_part: bool = False
    is_current: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether what it has written of a table are all rows."""
        return not self.is_branch and not self.is_part

    def to_json(self) -> Any:
        """As it stands in a ledger."""
        told: dict[str, Any] = {"name": self.name, "written": None if self.written is None else self.written.to_json()}
        told |= {"branch": True} if self.is_branch else {}
        return told | ({"part": True} if self.is_part else {})

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Read what `to_json` made, or the name alone, as ledgers of old have it. Raises what `Written` does."""
        if isinstance(value, str):
            return cls(value)
        written = value["written"]
        found = None if written is None else Written.from_json(written, where)
        return cls(str(value["name"]), found, bool(value.get("branch")), bool(value.get("part")))


def brings(of: str, selections: Sequence[Selection], name: str) -> bool:
    """Whether a stream of `of` with these selections has the table of this full name."""
    return matches(name, [of]) and (not selections or any(selects(each, name) for each in selections))


def selections_json(selections: Sequence[Selection]) -> list[Any]:
    """Selections as JSON."""
    return [[[choice.include, choice.exclude] for choice in selection] for selection in selections]


def selections_of(value: Iterable[Any]) -> tuple[Selection, ...]:
    """Read what `selections_json` made. Raises `ValueError`, `TypeError`."""
    return tuple(
        tuple(TableChoice(tuple(include), tuple(exclude)) for include, exclude in selection) for selection in value
    )


def furthest(statements: Iterable[Written], above: Pair | None) -> tuple[Written, ...]:
    """Of statements about the same tables the one that says most, as far as that is above a pair."""
    found: dict[tuple[str, tuple[Selection, ...]], Written] = {}
    for each in statements:
        known = found.get((each.of, each.selections))
        if (above is None or each.at.pair > above) and (known is None or each.at.pair > known.at.pair):
            found[each.of, each.selections] = each
    return tuple(found.values())


def brought_by_all(branches: Sequence[tuple[SourceCheckpoint | None, Sequence[Written]]]) -> list[Written]:
    """What is in the target of tables of which each of several streams has other rows: up to where all of them are.

    branches: where each stands, None where nobody knows, and what it says; a table of which it says nothing it has
    written up to there.
    """
    found = []
    for of, selections in dict.fromkeys((each.of, each.selections) for _, said in branches for each in said):
        ends = []
        for at, said in branches:
            mine = [each.at for each in said if (each.of, each.selections) == (of, selections)]
            ends.append(max(mine, key=lambda each: each.pair, default=at))
        known = [each for each in ends if each is not None]
        if len(known) == len(ends):
            found.append(Written(of, selections, min(known, key=lambda each: each.pair)))
    return found


def unwritten(batch: ChangeBatch, written: Sequence[Written], output: str) -> ChangeBatch:
    """The batch without what of its tables is in the target already.

    Raises `UnsupportedFeature` where that ends inside of a transaction, of which the batch's log counts the rows
    otherwise.
    """
    items: list[TableRows | TableControl] = []
    for item in batch.items:
        name = f"{batch.physical}/{item.table.source}"
        last = max((each.at for each in written if each.has(name)), key=lambda at: at.pair, default=None)
        if last is None or last.pair <= batch.start.pair:
            items.append(item)
            continue
        if is_inside_transaction(last.pair) and is_of_other_log(last, batch.end.log or ""):
            raise UnsupportedFeature(
                f"outputs.{output}: has a part of the transaction at SCN {last.scn} of {name} from log {last.log}, and "
                f"the next changes come from {batch.end.log}, which counts the rows of a transaction otherwise. "
                f"Restore that log; or give the output another name, under which it writes all again"
            )
        if isinstance(item, TableControl):
            items += [item] if item.pair > last.pair else []
            continue
        rows = rows_above(item.rows, last.pair)
        items += [replace(item, rows=rows)] if rows.num_rows else []
    return replace(batch, items=tuple(items))
