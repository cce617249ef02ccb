"""What a kind of source may offer beside capturing. Each capability is a protocol of the registered class.

A source offers a capability by having its methods; nothing is declared. `offered` finds it; where a source does not
have it, the error names the kinds of sources that do. The commands of databus know sources by nothing else:
`check-source` (`Checkable`, `Describable`), `validate` (`Describable`), `prepare` and `remove` (`Preparable`),
`position set` (`Movable`), `skip` (`Skippable`), `compare` (`Comparable`).

Static methods take the options of the source (an object of its `config_model`) and need no source; the others are
called on a source that was identified and is not captured.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from databus.log import Resume
from databus.schema import TableSchema
from databus.sources._oracle import Oracle
from databus.wire import Group

Severity: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a server."""

    severity: Severity
    name: str
    """Name of the check; it does not change between versions."""
    server: str
    what: str
    mend: str = ""
    """The statement to run, or the line to write."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.server}: {self.what}" + (f". Mend it by: {self.mend}" if self.mend else "")


@runtime_checkable
class Checkable(Protocol):
    """A database can be asked whether it is fit to be captured."""

    @staticmethod
    def check(config: Any) -> Sequence[Finding]:
        """What is wrong, worst first. A server that does not answer is a finding too."""
        ...

    @staticmethod
    def warm_up(physical: str, say: Callable[[str], None]) -> None:
        """Do once what a first start would wait for. say: called with what is being done, and with "" at the end."""
        ...


@runtime_checkable
class Describable(Protocol):
    """A database can be asked for its tables without being captured."""

    @staticmethod
    def definitions(physical: str, config: Any) -> Sequence[TableSchema]:
        """The tables that would be captured now. Raises what prevents asking for them, or capturing them."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """Capture puts something into the database: triggers, a slot, a publication."""

    @staticmethod
    def prepare(config: Any, *, take_over: bool) -> str:
        """Put it in, or bring it up to date, and return in words what is there now. Callable twice.

        take_over: let another log capture this database; the log that captured it before cannot go on then.
        """
        ...

    @staticmethod
    def remove(config: Any) -> str:
        """Take everything out again, and return in words what was done. Callable twice."""
        ...


@runtime_checkable
class Movable(Protocol):
    """Capture can go on at another place of the database's log."""

    @staticmethod
    def check_place(place: str) -> None:
        """Raises `ConfigError` for text that names no place."""
        ...

    def move(self, resume: Resume, place: str, *, reads: bool) -> Sequence[Group]:
        """What the log must say in order to go on there: a gap for each table. reads: have all tables read again."""
        ...


@runtime_checkable
class Skippable(Protocol):
    """Transactions can be skipped, such as one that capture stopped at."""

    def pass_over(self, resume: Resume, transactions: int, *, reads: bool) -> tuple[Sequence[Group], Sequence[str]]:
        """What the log must say in order to go on behind the next so many transactions; and their ids."""
        ...


@runtime_checkable
class CancelsSnapshots(Protocol):
    """A reading of tables that is under way, or waits, can end before its time."""

    def cancel_snapshot(self, sources: Sequence[str]) -> None:
        """Read these tables no further, from one of the next polls on. Any thread. A reading that has begun gets an end
        that is not `complete`; of a table that is not read nothing happens. Raises `UnknownSource`.
        """
        ...


@runtime_checkable
class Comparable(Protocol):
    """The database can be read as it is now, for a comparison with a copy."""

    @staticmethod
    def oracle(config: Any, folder: Path) -> Oracle:
        """Readings of the database. folder: where relative paths start."""
        ...
