"""What a source of a server and one of files share: one session, from `start` to `close`."""

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from databus.core import Clock, DatabusError, ServiceUnavailable, SystemClock
from databus.operate import logger_of
from databus.sources._config import SourceConfig
from databus.sources._contract import SourceLag
from databus.sources.mysql._session import BinlogSession
from databus.sources.mysql.binlog import GtidSet, GtidState, LogPosition, file_number
from databus.sources.mysql.rows import Omitter
from databus.wire import Group

_MARIADB: Final = re.compile(r"(\d+)-(\d+)-(\d+)")
_MYSQL: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::[a-z_][a-z0-9_]*)?):(\d+)")
_ANONYMOUS: Final = re.compile(r"(.*\.\d+):(\d+)")
_WARN_EVERY_S: Final = 600.0  # between two warnings about one table
C = TypeVar("C", bound=SourceConfig)


class OmissionReport:
    """Warnings about values that `omitter` left out of rows above `row_bytes_max`; no omitter, no warnings."""

    def __init__(self, logger: Any, omitter: Omitter | None) -> None:
        self._logger = logger
        self._omitter = omitter
        self._reported: dict[str, int] = {}
        self._due_s: dict[str, float] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The values lost so far, by table."""
        return {} if self._omitter is None else self._omitter.counts()

    def warn(self, *, is_last: bool = False) -> None:
        """Warn of each table with more omitted values than reported, at most once in ten minutes unless `is_last`."""
        if self._omitter is None:
            return
        now_s = time.monotonic()
        for table, count in self._omitter.counts().items():
            if count == self._reported.get(table) or (not is_last and now_s < self._due_s.get(table, now_s)):
                continue
            self._reported[table], self._due_s[table] = count, now_s + _WARN_EVERY_S
            self._logger.warning(
                "values were left out of rows above row_bytes_max",
                table=table,
                values=count,
                row_bytes_max=self._omitter.row_bytes_max,
                mend="raise row_bytes_max, or leave the column out with `columns`",
            )


class SessionSource(Generic[C]):
    """A subclass makes the session in `start`."""

    def __init__(self, physical: str, config: C, clock: Clock | None = None) -> None:
        self.physical = physical
        self._config: C = config
        self._clock = clock or SystemClock()
        self._logger = logger_of("databus.sources.mysql").bind(physical=physical)
        self._session: BinlogSession | None = None
        self._omissions = OmissionReport(self._logger, None)
        self.doing = ""  # what a start that takes long does now

    @staticmethod
    def contains(scheme: str, position: Mapping[str, Any], txid: str) -> bool | None:
        """See `databus.core.Contains`.

        By GTIDs only where SCNs are made of them: elsewhere their numbers may go back.
        """
        place = LogPosition.from_json(position)
        try:
            if scheme == "file-offset":
                return _by_offset(place, txid)
            return None if place.gtids is None else _by_gtids(scheme, place.gtids, txid)
        except DatabusError:
            return None  # no form that this version knows

    def _say(self, doing: str) -> None:
        self.doing = doing

    def _started(self) -> BinlogSession:
        if self._session is None:
            raise ServiceUnavailable(f"{self.physical}: the source is not started; the capture loop starts it again")
        return self._session

    def poll(self, wait_ms: int) -> Group | None:
        """See `Source.poll`."""
        return self._started().poll(wait_ms)

    def lag(self) -> SourceLag:
        """See `Source.lag`."""
        if self._session is None:
            return SourceLag()
        counts = self._session.statements_unknown
        lag = replace(self._session.lag(), values_omitted=self._omissions.counts, statements_unknown=counts)
        self._omissions.warn()
        return lag

    def close(self) -> None:
        """See `Source.close`."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._omissions.warn(is_last=True)


def _by_offset(place: LogPosition, txid: str) -> bool | None:
    named = _ANONYMOUS.fullmatch(txid)
    if named is None or not place.file:
        return None
    return (file_number(named[1]), int(named[2])) < (file_number(place.file), place.offset)


def _by_gtids(scheme: str, gtids: str, txid: str) -> bool | None:
    if scheme == "gtid" and (match := _MYSQL.fullmatch(txid)):
        return GtidSet.parse(gtids).has(match[1], int(match[2]))
    if scheme == "domains" and (match := _MARIADB.fullmatch(txid)):
        domain, server, number = map(int, match.groups())
        last_server, last = GtidState.parse(gtids).domains.get(domain, (0, 0))
        return number < last or (number, server) == (last, last_server)
    return None
