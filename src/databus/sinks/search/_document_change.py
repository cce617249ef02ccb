"""What a change of a table's schema does to the documents from before it. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from databus.core import COMMIT_VERSION, SEQ, Pair
from databus.schema import SchemaChange
from databus.sinks.search._mapping import DELETED

META: Final = "databus"
_BUS_FIELDS: Final = frozenset({COMMIT_VERSION, SEQ, DELETED})


@dataclass(frozen=True)
class DocumentChange:
    """Makes a document into a row of the new schema; to do so twice changes nothing more."""

    change: SchemaChange
    new: tuple[str, ...] = ()
    """Fields that the mapping lacks."""
    dropped: frozenset[str] = frozenset()
    """Fields that no column stands behind any more."""
    conflicts: tuple[str, ...] = ()
    """Columns that a field of the mapping cannot be any more, those of a key that is another one, and those that have
    each other's names now: a document does not say whether it was changed already.
    """

    @classmethod
    def of(
        cls, change: SchemaChange, mapping: Mapping[str, Any], wanted: Mapping[str, Any], key: Sequence[str]
    ) -> Self:
        """mapping: that of the index. wanted, key: the properties and the key that the table has now."""
        here: Mapping[str, Any] = mapping.get("properties") or {}
        meta = (mapping.get("_meta") or {}).get(META) or {}
        names = set(change.after.names)
        # A change that comes again leaves alone what only later ones speak of.
        later = set(meta.get("columns") or ()) if tuple(meta.get("schema") or (0, 0)) > change.pair else set()
        dropped = frozenset(set(here) - names - later - _BUS_FIELDS)
        kinds = {column.name: column.type for column in change.after.columns}
        conflicts = [
            name
            for name in names & here.keys()
            if here[name].get("type") != wanted[name].get("type") and not _may_stay(here[name], kinds[name])
        ]
        before = [change.renamed.get(name, name) for name in meta.get("key") or ()]
        if before and not later and before != list(key) and list(meta["key"]) != list(key):
            conflicts += {*before} ^ {*key} or {*key}
        conflicts += [name for name in change.renamed if _is_swapped(name, change.renamed)]
        new = tuple(name for name in change.after.names if name not in here)
        return cls(change, new, dropped, tuple(sorted(set(conflicts))))

    @property
    def is_nothing(self) -> bool:
        """Whether neither mapping nor documents change."""
        return not (self.new or self.conflicts or self.rewrites)

    @property
    def rewrites(self) -> bool:
        """Whether documents have to be looked at: one that only lacks a field, which is null then, has not."""
        has_values = any(value is not None for value in self.change.fill.values())
        return bool(has_values or self.change.renamed or self.dropped)

    def __call__(self, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The document as it is now; None if it is that already."""
        renamed = self.change.renamed
        moves = {
            old: new for old, new in renamed.items() if old in document and (new not in document or new in renamed)
        }
        made = {name: value for name, value in document.items() if name not in moves and name not in self.dropped}
        made |= {new: document[old] for old, new in moves.items()}
        for new in renamed.values():
            made.setdefault(new, None)  # so that the same change, the next time, sees that it was here
        for name, value in self.change.fill.items():
            if value is not None:
                made.setdefault(name, value)
        return None if made == document else made


def meta_of(
    owner: str, source: str, columns: Sequence[str], key: Sequence[str], schema: Pair, anew: Pair
) -> dict[str, Any]:
    """What an index's mapping says of it. schema: the pair of the last change that it has followed; anew: of the one
    for which it was rebuilt, and takes no rows from before.
    """
    meta = {"owner": owner, "source": source, "columns": [*columns], "key": [*key]}
    return {"_meta": {META: {**meta, "schema": [*schema], "anew": [*anew]}}}


def _is_swapped(name: str, renamed: Mapping[str, str]) -> bool:
    """Whether renaming leads back to this name: a and b have each other's, or several go round."""
    new = renamed[name]
    for _ in renamed:
        if new == name:
            return True
        new = renamed.get(new, new)
    return False


def _may_stay(here: Mapping[str, Any], kind: str) -> bool:
    """Whether a field may stay what it is: a number that is too large for it is kept, and not found by searches."""
    return here.get("type") == "long" and kind == "uint64"
