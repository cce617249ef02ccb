"""Lookup: what tables were at a place of the log, looked up in the server's catalogue and proven by the rest of the
log.

The catalogue says what a table is now, which may be days after the place at hand. So the log from that place to its
present end is read once more, for its statements only: if none of them touches the table, it was the same there.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql

from databus.core import ServiceUnavailable, SourceChanged, source_name
from databus.sources.mysql._definition import identifier
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql.binlog import LoggedStatement, LogPosition, Scanner
from databus.sources.mysql.binlog._position import file_number
from databus.sources.mysql.server import ConnectedServer, Dump, close_quietly, server_facts
from databus.sources.mysql.tables import Catalogue, ServerKind, TableState, touched_names

Name = tuple[str, str]

_READ_S_MAX: Final = 120.0  # for the log up to its end
_TAKE_S: Final = 0.1
_LOCK_S_MAX: Final = 5  # for a statement that holds the table
_LOCK_WAIT_TIMEOUT: Final = 1205


class NotProven(ServiceUnavailable):
    """The catalogue cannot be held against the log now; later it may be."""


@dataclass(slots=True)
class CatalogueAnswer:
    """What the catalogue says of a table."""

    table: TableState | None
    """None if there is none."""
    is_other: bool = False
    """A view or a sequence has its name."""
    later: int = 0
    """How many statements after the place may have changed the table: the answer holds from behind the last of them on.
    """
    last: str = field(default="", compare=False)
    """The last of these statements, for errors."""


def touched_by(statement: LoggedStatement, server: ServerKind) -> set[Name]:
    """The tables that a statement may change, in lower case."""
    query = statement.query
    touched = touched_names(query.text, server, query.sql_mode or 0, query.database)
    return {lower(name) for name in (*touched.certain, *touched.possible)}


def lower(name: Name) -> Name:
    """A table's name as `touched_by` has it."""
    return name[0].lower(), name[1].lower()


class TableLookup:
    """Asks the server whose log is followed.

    open_server: a new connection to that very server, and its facts as of now. open_dump, open_scanner: its log from a
    place on.
    """

    def __init__(
        self,
        keeper: HistoryKeeper,
        open_server: Callable[[], ConnectedServer],
        open_dump: Callable[[ConnectedServer, LogPosition], Dump],
        open_scanner: Callable[[LogPosition], Scanner],
    ) -> None:
        self._keeper = keeper
        self._open_server = open_server
        self._open_dump = open_dump
        self._open_scanner = open_scanner

    def table_at(self, database: str, name: str, position: LogPosition) -> TableState:
        """The table as it was at `position`.

        Raises `SourceChanged` where the server has none of that name now, or a statement behind `position` may have
        changed it; `ServiceUnavailable` where the server cannot be asked.
        """
        try:
            answer = self.tables_at([(database, name)], position)[database, name]
        except NotProven as error:
            raise SourceChanged(f"{error}, so the catalogue of now does not say what {database}.{name} was") from error
        if answer.table is None:
            raise SourceChanged(f"it has no table {database}.{name} now")
        if answer.later:
            raise SourceChanged(
                f"{answer.last} came later, so the catalogue of now does not say what {database}.{name} was here"
            )
        return answer.table

    def tables_at(
        self, names: Sequence[Name], position: LogPosition, read_s_max: float = _READ_S_MAX
    ) -> dict[Name, CatalogueAnswer]:
        """What the catalogue says of these tables, and from where behind `position` on that holds.

        Raises `SourceChanged` for a table of a kind that databus cannot read, `NotProven` if one is locked or changes
        while it is asked for, or the log goes on for more than can be read in `read_s_max`; `ServiceUnavailable` where
        the server cannot be asked.
        """
        server = self._open_server()
        try:
            begin = _end_of_log(server)
            for name in names:  # behind `begin`: what is logged up to there is in the catalogue once the wait is over
                _wait_for_statements(server.connection, name)
            catalogue = self._keeper.read_catalogue(server.connection, names)
            if catalogue.unread:
                (database, table), why = next(iter(catalogue.unread.items()))
                raise SourceChanged(f"{database}.{table}: {why}")
            answers = _answers_of(names, catalogue)
            self._count_later(server, answers, position, (begin, _end_of_log(server)), read_s_max)
            return answers
        finally:
            close_quietly(server.connection)

    def _count_later(
        self,
        server: ConnectedServer,
        answers: dict[Name, CatalogueAnswer],
        position: LogPosition,
        asked: tuple[tuple[int, int], tuple[int, int]],
        read_s_max: float,
    ) -> None:
        """Count the statements that the catalogue may not contain. asked: where the log ended before and after the
        catalogue was read: it has everything before the first, and may or may not have what is between the two.
        """
        begin, end = asked
        scanner = self._open_scanner(position)
        dump = self._open_dump(server, position)
        give_up_s = time.monotonic() + read_s_max
        try:
            while True:
                before = _place(scanner.position)
                match scanner.next():
                    case LoggedStatement() as statement:
                        touched = touched_by(statement, self._keeper.server)
                        is_behind = before >= begin or (
                            statement.position is not None and _place(LogPosition.from_json(statement.position)) > begin
                        )
                        for name in [name for name in answers if lower(name) in touched]:
                            if is_behind:
                                raise NotProven(f"{source_name(*name)} is being changed: {statement.text[:200]!r}")
                            answers[name].later += 1
                            answers[name].last = f"{statement.text[:200]!r} (at {statement.place})"
                    case None:
                        if _place(scanner.position) >= end:
                            return
                        if time.monotonic() > give_up_s:
                            raise NotProven(f"the log goes on for more than can be read in {read_s_max:.0f} s")
                        block = dump.take(_TAKE_S)
                        if block is not None:
                            scanner.feed(block)
                    case _:
                        continue
        finally:
            dump.close()


def tables_there(connect: "Callable[[], pymysql.Connection[Any]]", names: Sequence[Name]) -> list[Name]:
    """Which of these tables the server has now, in its own spelling."""
    connection = connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT table_schema, table_name FROM information_schema.tables WHERE (table_schema, table_name) IN %s",
                (list(names),),
            )
            return [(str(database), str(name)) for database, name in cursor.fetchall()]
    except pymysql.MySQLError as error:
        raise ServiceUnavailable(f"the server cannot be asked which tables it has: {error}") from error
    finally:
        close_quietly(connection)


def _end_of_log(server: ConnectedServer) -> tuple[int, int]:
    facts = server_facts(server.connection, server.facts.server)
    return file_number(facts.file), facts.offset


def _place(position: LogPosition) -> tuple[int, int]:
    """A place of one server's log, to be compared; before all others while the file is not known yet."""
    return (file_number(position.file), position.offset) if position.file else (0, 0)


def _wait_for_statements(connection: "pymysql.Connection[Any]", name: Name) -> None:
    """Wait until what is logged of a table is in the catalogue as well: a statement is logged first, and the table is
    locked until it is done. Raises `NotProven` where it is locked for longer.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {_LOCK_S_MAX}")
            cursor.execute(f"SELECT 1 FROM {identifier(*name)} LIMIT 0")  # noqa: S608 - quoted
    except pymysql.MySQLError as error:
        if error.args[0] == _LOCK_WAIT_TIMEOUT:
            raise NotProven(f"{source_name(*name)} is locked") from error
        # Anything else is an answer: there is no such table, or what stands there cannot be read. A connection that is
        # lost shows at the next query.


def _answers_of(names: Sequence[Name], catalogue: Catalogue) -> dict[Name, CatalogueAnswer]:
    tables = {(table.database, table.name): table for table in catalogue.tables}
    return {name: CatalogueAnswer(tables.get(name), name in catalogue.others) for name in names}
