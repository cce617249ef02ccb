"""The result of a comparison: the differences of tables, for people and programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from databus.sources import Row


@dataclass(frozen=True)
class TableDifference:
    """The differences of one table."""

    name: str
    rows: int
    """Rows of the source."""
    only_in_source: tuple[Row, ...] = ()
    """The first few keys, as of the other kinds."""
    only_in_copy: tuple[Row, ...] = ()
    different: tuple[Row, ...] = ()
    only_in_source_rows: int = 0
    """How many there are, as of the other kinds."""
    only_in_copy_rows: int = 0
    different_rows: int = 0
    note: str = ""
    """Why the table was not compared."""

    @property
    def is_identical(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_in_source_rows or self.only_in_copy_rows or self.different_rows or self.note)

    def joined(self, other: "TableDifference", keys_max: int) -> "TableDifference":
        """The differences of this part of the table and another."""
        return TableDifference(
            self.name,
            self.rows + other.rows,
            _first((*self.only_in_source, *other.only_in_source), keys_max),
            _first((*self.only_in_copy, *other.only_in_copy), keys_max),
            _first((*self.different, *other.different), keys_max),
            self.only_in_source_rows + other.only_in_source_rows,
            self.only_in_copy_rows + other.only_in_copy_rows,
            self.different_rows + other.different_rows,
            self.note or other.note,
        )

    def lines(self) -> Iterator[str]:
        """The differences, for people."""
        if self.note:
            yield f"{self.name}: {self.note}"
        kinds = (
            (self.only_in_source_rows, self.only_in_source, "only in the source"),
            (self.only_in_copy_rows, self.only_in_copy, "only in the copy"),
            (self.different_rows, self.different, "in both, with other values"),
        )
        for count, keys, words in kinds:
            if count:
                shown = ", ".join("/".join(map(repr, key)) for key in keys)
                yield f"{self.name}: {count:,} rows {words}, first {shown}"


@dataclass(frozen=True)
class Comparison:
    """Every table of a copy against its source."""

    tables: tuple[TableDifference, ...]
    positions: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_identical(self) -> bool:
        """Whether nothing differs; false if no table was compared."""
        return bool(self.tables) and all(table.is_identical for table in self.tables)

    @property
    def rows(self) -> int:
        """Rows of the source that were compared."""
        return sum(table.rows for table in self.tables)

    def summary(self) -> str:
        """One line."""
        if not self.tables:
            return "nothing was compared: none of the tables is captured"
        word = "identical" if self.is_identical else "different"
        return f"source and copy {word}: {len(self.tables)} tables, {self.rows:,} rows"

    def details(self) -> str:
        """The summary, and a line for each difference."""
        return "\n".join([self.summary(), *(line for table in self.tables for line in table.lines())])

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        tables = [
            {
                "table": table.name,
                "rows": table.rows,
                "identical": table.is_identical,
                "only_in_source": table.only_in_source_rows,
                "only_in_copy": table.only_in_copy_rows,
                "different": table.different_rows,
                "differences": list(table.lines()),
            }
            for table in self.tables
        ]
        return {"identical": self.is_identical, "rows": self.rows, "positions": self.positions, "tables": tables}


def difference(name: str, source: Mapping[Row, Row], copied: Mapping[Row, Row], keys_max: int) -> TableDifference:
    """The differences of a source's rows and those of its copy, both by key."""
    missing = [key for key in source if key not in copied]
    extra = [key for key in copied if key not in source]
    changed = [key for key, row in source.items() if key in copied and not _is_same(row, copied[key])]
    return TableDifference(
        name,
        len(source),
        only_in_source=_first(missing, keys_max),
        only_in_copy=_first(extra, keys_max),
        different=_first(changed, keys_max),
        only_in_source_rows=len(missing),
        only_in_copy_rows=len(extra),
        different_rows=len(changed),
    )


def _first(keys: Sequence[Row], keys_max: int) -> tuple[Row, ...]:
    return tuple(sorted(keys, key=repr)[:keys_max])


def _is_same(row: Row, other: Row) -> bool:
    return all(a == b and type(a) is type(b) for a, b in zip(row, other, strict=True))
