"""What a source of a server and one of files share: one session, from `start` to `close`."""

from dataclasses import replace
from typing import Generic, TypeVar

from databus.core import Clock, ServiceUnavailable, SystemClock
from databus.operate import logger_of
from databus.sources._config import SourceConfig
from databus.sources._contract import SourceLag
from databus.sources.mysql._omitted_values import OmissionReport
from databus.sources.mysql._session import BinlogSession
from databus.wire import Group

C = TypeVar("C", bound=SourceConfig)


class SessionSource(Generic[C]):
    """A subclass makes the session in `start`. doing: what a start does now, if it takes long."""

    def __init__(self, physical: str, config: C, clock: Clock | None = None) -> None:
        self.physical = physical
        self._config: C = config
        self._clock = clock or SystemClock()
        self._logger = logger_of("databus.sources.mysql").bind(physical=physical)
        self._session: BinlogSession | None = None
        self._omissions = OmissionReport(self._logger, None)
        self.doing = ""

    def _say(self, doing: str) -> None:
        self.doing = doing

    def _started(self) -> BinlogSession:
        if self._session is None:
            raise ServiceUnavailable(f"{self.physical}: the source is not started; the capture loop starts it anew")
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
        self._omissions.tell()
        return lag

    def close(self) -> None:
        """See `Source.close`."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._omissions.tell(is_last=True)
