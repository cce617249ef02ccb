"""Statements in the log: how transactions begin and end, what of them is taken back, and what may be DDL.

Rows of an XA transaction are held from its prepare on (see `_prepared`); at its commit their events are walked through
as if they stood there, with the commit's own number and time.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Final

import numpy as np

from databus.core import UnsupportedFeature
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._byte_reader import ByteReader
from databus.sources.mysql.binlog._compressed import inflate_event
from databus.sources.mysql.binlog._event_types import HEADER_BYTES, EventType
from databus.sources.mysql.binlog._failures import failure
from databus.sources.mysql.binlog._prepared import Prepared, PreparedMissing, parse_xa_prepare, xid_of
from databus.sources.mysql.binlog._query_event import Query, QueryKind, databases_of, kind_of, parse_query
from databus.sources.mysql.binlog._savepoints import Savepoints
from databus.sources.mysql.binlog._scan_buffer import Walk, frozen
from databus.sources.mysql.binlog._scanned import LoggedStatement, TakenBack

HELD_KINDS: Final = frozenset(
    {
        EventType.TABLE_MAP,
        EventType.WRITE_ROWS_V1,
        EventType.UPDATE_ROWS_V1,
        EventType.DELETE_ROWS_V1,
        EventType.WRITE_ROWS,
        EventType.UPDATE_ROWS,
        EventType.DELETE_ROWS,
        EventType.PARTIAL_UPDATE_ROWS,
        EventType.WRITE_ROWS_COMPRESSED_V1,
        EventType.UPDATE_ROWS_COMPRESSED_V1,
        EventType.DELETE_ROWS_COMPRESSED_V1,
        EventType.WRITE_ROWS_COMPRESSED,
        EventType.UPDATE_ROWS_COMPRESSED,
        EventType.DELETE_ROWS_COMPRESSED,
    }
)
"""What an XA transaction that will be prepared changes."""


class StatementWalk(Walk):
    """What statements mean for the open transaction. `Scanner` is the class to use."""

    _wants_database: Callable[[str], bool]
    _prepared: Prepared | None
    _begins_us: int  # XA transactions that were committed before are passed over
    _savepoints: Savepoints
    _savepoints_of: int  # which transaction's they are
    _held_of: int  # which transaction's events were added to `_prepared` last
    _held_tables: dict[int, bool]  # of its table ids: whether the table is captured
    _held_is_whole: bool
    _is_replayed: bool  # what was prepared has been walked through; its commit ends it

    def on_query(self) -> None:
        """A QUERY event, compressed or not, or the statement that ends a LOAD DATA."""
        state, body, text = self._state, self._body(), None
        kind = self._event_kind()
        if kind == EventType.QUERY_COMPRESSED:
            text = self._compressed_text(body)
        if kind == EventType.EXECUTE_LOAD_QUERY:
            body = body[:13] + body[26:]  # between them: which file, and where in the statement its name stands
        flags = int.from_bytes(self._event()[17:19], "little")
        query = parse_query(body, flags=flags, text=text)
        if (
            state[s.TX_STATE] == s.OUTSIDE
            and self._transaction_kernels.begin_anonymous(state, self._when()) == s.FAILED
        ):
            raise failure(int(state[s.ERROR]), self._where(), kind, int(state[s.SIZE]))
        what: QueryKind = "nothing" if query.is_without_effect else kind_of(query.text)
        handler = self._BY_MEANING.get(what)
        if handler is not None:
            handler(self, query)
        elif what == "ddl" and not state[s.TX_SKIP]:
            self._give_statement(query)
        else:
            if what == "rows" and not state[s.TX_SKIP]:
                self._check_rows_statement(query)
            self._pass(query)

    def _pass(self, _: Query) -> None:
        """A statement that means nothing; outside of a transaction it is one of its own."""
        if self._state[s.TX_STATE] != s.INSIDE:
            self._finish(is_row=True)
        self._consume()

    def _end(self, _: Query) -> None:
        self._finish(is_row=True)
        self._consume()

    def _begin(self, _: Query) -> None:
        state = self._state
        if state[s.TX_STATE] == s.INSIDE:
            raise failure(s.INSIDE_TX, self._where(), self._event_kind(), int(state[s.SIZE]))
        state[s.TX_STATE] = s.INSIDE
        self._consume()

    # --- what is taken back ---

    def _roll_back(self, query: Query) -> None:
        """Servers log a transaction that was rolled back if it did something that cannot be rolled back, such as
        dropping a temporary table. Its changes to non-transactional tables they log in transactions of their own.
        """
        if not self._state[s.TX_SKIP]:
            self._take_back(0)
        self._end(query)

    def _set_savepoint(self, query: Query) -> None:
        if self._marks_count():
            self._savepoints.set(_after(query, "SAVEPOINT"), int(self._state[s.TX_ROWS_SEEN]))
        self._pass(query)

    def _roll_back_to(self, query: Query) -> None:
        if self._marks_count():
            name = _after(query, "TO")
            if name[:9].upper() == b"SAVEPOINT" and name[9:10].isspace():
                name = name[9:].strip()
            stay = self._savepoints.roll_back(name)
            if stay is not None:
                self._take_back(stay)
            elif self._state[s.TX_ROWS_EVENTS]:
                raise UnsupportedFeature(
                    f"{self._where()}: {query.text[:200]!r}, and the log does not say where that savepoint was set: "
                    f"which rows of the transaction were rolled back is not known. Pass it over with `databus skip`, "
                    f"and snapshot the tables that it changes"
                )
        self._pass(query)

    def _marks_count(self) -> bool:
        """Whether a savepoint counts now; takes those before it. In an XA transaction that is held, it is held too."""
        state = self._state
        if self._is_held():
            if self._prepared is not None:
                self._add_held(self._event())
            return False
        if state[s.TX_STATE] != s.INSIDE or state[s.TX_SKIP]:
            return False
        self._take_marks()
        return True

    def _take_marks(self) -> None:
        """The savepoints that the kernel has noted since Python asked last."""
        state = self._state
        if self._savepoints_of != state[s.TX_NUMBER]:
            self._savepoints, self._savepoints_of = Savepoints(), int(state[s.TX_NUMBER])
        for mark in range(int(state[s.N_MARKS])):
            rows, length = self._marks[mark].tolist()
            at = mark * s.NAME_BYTES_MAX
            self._savepoints.set(self._names[at : at + length].tobytes(), rows)
        state[s.N_MARKS] = 0

    def _take_back(self, first: int) -> None:
        """The open transaction's rows events from number `first` on were rolled back."""
        state = self._state
        count, row = int(state[s.N_EVENTS]), int(state[s.TX_ROW])
        if row >= 0:
            events = self._events[:count]
            is_undone = (events[:, s.EV_TX] == row) & (events[:, s.EV_NUMBER] >= first)
            state[s.N_EVENTS] = count - int(np.count_nonzero(is_undone))  # they are the last ones
        # What the last run left unfinished is the first transaction of this one; any later one is not out.
        if self._open_is_out and int(state[s.N_TX]) == (row >= 0):
            self._ready.append(TakenBack(self._origin(), first, int(state[s.TX_ROWS_SEEN]), self._where()))

    # --- XA transactions ---

    def _begin_xa(self, _: Query) -> None:
        self._state[s.TX_STATE] = s.INSIDE
        self._state[s.TX_IS_XA] = 1
        self._consume()

    def _is_held(self) -> bool:
        state = self._state
        return bool(state[s.TX_IS_XA] and (not state[s.TX_SKIP] or state[s.HOLDS_SKIPPED]))

    def hold(self) -> None:
        """An event that changes rows in a transaction that will be prepared."""
        state, kind = self._state, self._event_kind()
        event = self._event()
        width = int(state[s.TABLE_ID_BYTES])
        table_id = int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + width], "little")
        self._begin_held()
        if kind == EventType.TABLE_MAP:
            is_wanted = self._known.slot_of(event[HEADER_BYTES + width :]) >= 0
            self._held_tables[table_id] = is_wanted
        elif table_id in self._held_tables:
            is_wanted = self._held_tables[table_id]
            self._held_is_whole &= is_wanted
        elif table_id == s.DUMMY_TABLE_ID:
            is_wanted = False  # it only ends a statement, and has no rows
        else:
            raise failure(s.NO_TABLE_MAP, self._where(), kind, int(state[s.SIZE]))
        if is_wanted:
            self._add_held(event)
        self._consume()

    def _begin_held(self) -> None:
        number = int(self._state[s.TX_NUMBER])
        if self._held_of != number:
            self._held_of, self._held_tables, self._held_is_whole = number, {}, True
            if self._prepared is not None:
                self._prepared.begin()

    def _add_held(self, event: bytes) -> None:
        self._begin_held()
        if self._prepared is None:
            raise UnsupportedFeature(
                f"{self._where()}: an XA transaction on a captured table, and nothing here holds it"
            )
        self._prepared.add(event)

    def _event(self) -> bytes:
        """The event at hand, without its checksum."""
        event = bytearray(self._buffer[int(self._state[s.POS]) : int(self._state[s.BODY_END])].tobytes())
        event[9:13] = len(event).to_bytes(4, "little")
        return bytes(event)

    def on_xa_prepare(self) -> None:
        """An XA_PREPARE event, which also stands for XA COMMIT ... ONE PHASE."""
        state = self._state
        if state[s.TX_STATE] == s.OUTSIDE:
            raise failure(s.OUTSIDE_TX, self._where(), EventType.XA_PREPARE, int(state[s.SIZE]))
        xid, is_one_phase = parse_xa_prepare(self._body())
        if self._is_held() and self._prepared is not None:
            self._begin_held()
            if not is_one_phase:
                ordinal = int(state[s.LAST_ORDINAL if state[s.TX_SKIP] else s.TX_ORDINAL])
                self._prepared.prepare(xid, ordinal, is_whole=self._held_is_whole)
            elif not state[s.TX_SKIP]:
                self._replay(self._prepared.take())
                return
        self._is_replayed = False
        self._finish(is_row=True)
        self._consume()

    def _commit_xa(self, query: Query) -> None:
        if self._prepared is not None and not self._is_replayed:
            state, xid = self._state, xid_of(query.text)
            # Its rows would be passed over by who begins later, and its prepare may have left the log.
            if state[s.TX_SKIP] or state[s.TX_COMMIT_US] < self._begins_us:
                self._prepared.forget(xid, int(state[s.LAST_ORDINAL if state[s.TX_SKIP] else s.TX_ORDINAL]))
            else:
                self._replay(self._held_rows(query, xid, self._prepared))
                return
        self._is_replayed = False
        self._end(query)

    def _held_rows(self, query: Query, xid: str, prepared: Prepared) -> Iterator[bytes]:
        """The events of what is committed. Raises `PreparedMissing`."""
        table = prepared.altered(xid)
        if table:
            raise UnsupportedFeature(
                f"{self._where()}: {query.text[:200]!r} commits rows of {table} that were prepared before a "
                f"statement changed that table, which servers should not let happen (MySQL 5.7 does, once the "
                f"session that prepared has ended): the log does not say what became of them. Pass over it by "
                f"`databus skip`, and have the transaction's tables read again by `databus snapshot`"
            )
        ordinal = int(self._state[s.TX_ORDINAL])
        pieces = prepared.commit(xid, ordinal)
        if pieces is None:
            raise PreparedMissing(
                f"{self._where()}: {query.text[:200]!r} commits what was prepared before this log was read, "
                f"and nothing here holds its rows",
                xid,
                ordinal,
            )
        return pieces

    def _roll_back_xa(self, query: Query) -> None:
        """MySQL 5.7 writes one that was never prepared, too, as a whole: nothing is held of it."""
        state = self._state
        if state[s.TX_STATE] != s.INSIDE and self._prepared is not None:
            ordinal = int(state[s.LAST_ORDINAL if state[s.TX_SKIP] else s.TX_ORDINAL])
            self._prepared.forget(xid_of(query.text), ordinal)
        self._end(query)

    def _replay(self, pieces: Iterator[bytes]) -> None:
        """Walk through what was prepared; then the event at hand comes again, and ends the transaction."""
        self._state[s.TX_STATE] = s.INSIDE
        self._state[s.TX_IS_XA] = 0
        self._is_replayed = True
        self._enter(frozen(np.frombuffer(piece, np.uint8)) for piece in pieces)

    # --- other statements ---

    def _compressed_text(self, body: bytes) -> bytes:
        if len(body) < 13:
            raise ValueError("it is too short")
        head = 13 + int.from_bytes(body[11:13], "little") + body[8] + 1
        reader = ByteReader(body[head:])
        first = reader.integer(1)
        if first & 0xF8 != 0x80 or not 1 <= first & 7 <= 4:
            raise ValueError("compressed in an unknown way")
        inflated = int.from_bytes(reader.take(first & 7), "big")
        if inflated > self._event_bytes_max:
            raise failure(s.TOO_LARGE, self._where(), EventType.QUERY_COMPRESSED, inflated)
        return inflate_event(memoryview(reader.rest()), inflated)

    def _check_rows_statement(self, query: Query) -> None:
        touched = sorted(database for database in databases_of(query) if self._wants_database(database))
        if touched:
            raise UnsupportedFeature(
                f"{self._where()}: a statement was logged instead of the rows that it changed: {query.text[:200]!r}, "
                f"and {', '.join(touched)} "
                f"is captured. The server, or that session, runs without binlog_format=ROW: SET GLOBAL binlog_format "
                f"= 'ROW', then "
                f"snapshot the captured tables again from a position behind it"
            )

    def _give_statement(self, query: Query) -> None:
        state, where = self._state, self._where()
        # MySQL logs CREATE TABLE ... SELECT as CREATE TABLE ... START TRANSACTION; its rows follow in the transaction.
        is_complete = state[s.TX_STATE] == s.GROUP and not query.text.rstrip().upper().endswith("START TRANSACTION")
        scn, txid, commit_us = int(state[s.TX_ORDINAL]), self._txid(), int(state[s.TX_COMMIT_US])
        self._keep_run()  # first: the rows before the statement are of the table as it was
        position = None
        if is_complete:
            self._finish(is_row=False)
            self._base = self._executed.snapshot(state)
        else:
            state[s.TX_STATE] = s.INSIDE
        self._open_is_out = not is_complete
        self._consume()
        if is_complete:
            position = self.position.to_json()
        self._ready.append(LoggedStatement(query, scn, txid, commit_us, position, where))

    _BY_MEANING: ClassVar[Mapping[QueryKind, Callable[["StatementWalk", Query], None]]] = {
        "begin": _begin,
        "commit": _end,
        "rollback": _roll_back,
        "savepoint": _set_savepoint,
        "rollback-to": _roll_back_to,
        "xa-begin": _begin_xa,
        "xa-commit": _commit_xa,
        "xa-rollback": _roll_back_xa,
    }


def _after(query: Query, word: str) -> bytes:
    """What follows the first `word` of a statement, as bytes: servers log names in UTF-8, whatever the client used."""
    at = query.raw.upper().index(word.encode())
    return query.raw[at + len(word) :].strip()
