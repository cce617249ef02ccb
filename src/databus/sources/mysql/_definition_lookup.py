"""Lookup: what a table was at a place of the log, found in the server's catalogue and proven by the rest of the log.

The catalogue says what a table is now, which may be days after the place at hand. So the log from that place to its
present end is read once more, for its statements only: if none of them touches the table, it was the same there.
"""

import time
from collections.abc import Callable
from typing import Final

from databus.core import SourceChanged
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql.binlog import Position, Scanner, Statement
from databus.sources.mysql.binlog._position import file_number
from databus.sources.mysql.server import ConnectedServer, Dump, close_quietly, server_facts
from databus.sources.mysql.tables import TableState, touched_names

_READ_S_MAX: Final = 120.0
_TAKE_S: Final = 0.1


class TableLookup:
    """Asks the server whose log is followed.

    open_server: a new connection to that very server, and its facts as of now. open_dump, open_scanner: its log from a
    place on.
    """

    def __init__(
        self,
        keeper: HistoryKeeper,
        open_server: Callable[[], ConnectedServer],
        open_dump: Callable[[ConnectedServer, Position], Dump],
        open_scanner: Callable[[Position], Scanner],
    ) -> None:
        self._keeper = keeper
        self._open_server = open_server
        self._open_dump = open_dump
        self._open_scanner = open_scanner

    def table_at(self, database: str, name: str, position: Position) -> TableState:
        """The table as it was at `position`.

        Raises `SourceChanged` where the server has none of that name now, or a statement behind `position` may have
        changed it; `ServiceUnavailable` where the server cannot be asked.
        """
        server = self._open_server()
        try:
            catalogue = self._keeper.read_catalogue(server.connection, [(database, name)])
            if not catalogue.tables:
                raise SourceChanged(catalogue.unread.get((database, name), f"it has no table {database}.{name} now"))
            end = server_facts(server.connection, server.facts.server)
            self._refuse_if_touched(server, database, name, position, (file_number(end.file), end.offset))
            return catalogue.tables[0]
        finally:
            close_quietly(server.connection)

    def _refuse_if_touched(
        self, server: ConnectedServer, database: str, name: str, position: Position, end: tuple[int, int]
    ) -> None:
        scanner = self._open_scanner(position)
        dump = self._open_dump(server, position)
        give_up_s = time.monotonic() + _READ_S_MAX
        try:
            while True:
                match scanner.next():
                    case Statement() as statement:
                        if self._touches(statement, database, name):
                            raise SourceChanged(
                                f"{statement.text[:200]!r} (at {statement.place}) came later, so the catalogue of now "
                                f"does not say what {database}.{name} was here"
                            )
                    case None:
                        here = scanner.position
                        if here.file and (file_number(here.file), here.offset) >= end:
                            return
                        if time.monotonic() > give_up_s:
                            raise SourceChanged(
                                f"the log goes on for more than can be read in {_READ_S_MAX:.0f} s, so the catalogue "
                                f"of now does not say what {database}.{name} was here"
                            )
                        block = dump.take(_TAKE_S)
                        if block is not None:
                            scanner.feed(block)
                    case _:
                        continue
        finally:
            dump.close()

    def _touches(self, statement: Statement, database: str, name: str) -> bool:
        query = statement.query
        found = touched_names(query.text, self._keeper.server, query.sql_mode or 0, query.database)
        wanted = (database.lower(), name.lower())
        return any((db.lower(), table.lower()) == wanted for db, table in (*found.certain, *found.possible))
