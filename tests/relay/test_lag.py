"""Lag is an age: of the oldest change that the database has and the log has not; it grows while nobody can look."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.core import ServiceUnavailable, SourceChanged
from databus.relay import Relay, State
from databus.relay._lag import LagWatch
from databus.sources import SourceLag
from databus.testing import FakeClock
from tests.relay.support import (
    AT_US,
    Database,
    ScriptedSource,
    config_of,
    get,
    order,
    published,
    state_of,
    wait_for_state,
)

HOUR_MS = 3_600_000.0


class Watched:
    """A watch on a clock that a test moves."""

    def __init__(self) -> None:
        self.watch, self.clock = LagWatch(), FakeClock()

    def look(self, **measured: object) -> None:
        self.watch.measured(SourceLag(**measured), self.clock.monotonic_ns())

    def lag(self, *, is_looking: bool = True, committed_ms: float | None = None) -> SourceLag:
        return self.watch.now(self.clock.monotonic_ns(), is_looking=is_looking, committed_ms=committed_ms)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_quiet_source_that_is_at_the_end_has_no_lag(watched: Watched) -> None:
    for _ in range(3):
        watched.look(behind_ms=0.0, changes=0)
        watched.clock.advance_ms(900)
        assert (watched.lag().behind_ms, watched.lag().changes) == (0.0, 0)


def test_a_source_that_is_dead_grows_older_from_when_it_was_complete(watched: Watched) -> None:
    watched.look(behind_ms=0.0, changes=0, bytes=0, retention_left_ms=2 * HOUR_MS)
    watched.clock.advance_ms(HOUR_MS)
    lag = watched.lag(is_looking=False, committed_ms=50 * HOUR_MS)
    assert (lag.behind_ms, lag.changes, lag.bytes, lag.retention_left_ms) == (HOUR_MS, None, None, HOUR_MS)


def test_capture_that_hangs_is_as_good_as_dead(watched: Watched) -> None:
    watched.look(behind_ms=0.0)
    watched.clock.advance_ms(HOUR_MS)
    assert watched.lag().behind_ms == HOUR_MS


def test_the_first_change_after_a_quiet_time_is_not_as_old_as_the_quiet_time(watched: Watched) -> None:
    watched.look(behind_ms=0.0)
    watched.clock.advance_ms(1_000)
    watched.look(behind_ms=48 * HOUR_MS)  # of the last commit that the source has seen
    assert watched.lag().behind_ms == 1_000


def test_a_source_that_cannot_tell_for_a_while_grows_older_and_one_that_never_could_says_nothing(
    watched: Watched,
) -> None:
    watched.look()
    assert watched.lag().behind_ms is None
    watched.look(behind_ms=0.0)
    watched.clock.advance_ms(1_000)
    watched.look(behind_ms=None, changes=3)
    assert (watched.lag().behind_ms, watched.lag().changes) == (1_000, 3)


def test_where_nobody_has_ever_looked_the_logs_last_commit_counts(watched: Watched) -> None:
    assert watched.lag(is_looking=False, committed_ms=HOUR_MS).behind_ms == HOUR_MS
    assert watched.lag(is_looking=False).behind_ms is None


class Quiet(ScriptedSource):
    """Says that nothing waits while nothing does."""

    def lag(self) -> SourceLag:
        return SourceLag(0.0, 0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def shop() -> Database:
    return Database(groups=[order(scn) for scn in range(1, 5)])


@pytest.fixture
def relay(tmp_path: Path, shop: Database, clock: FakeClock) -> Iterator[Relay]:
    config = config_of(tmp_path, {"shop": shop})
    with Relay(config, open_source=lambda name, _: Quiet(name, shop), clock=clock) as relay:
        published(relay, "shop", 4)
        get(relay, "/controlSources/status", look=1)
        yield relay


def gauge(relay: Relay, name: str) -> float | None:
    lines = get(relay, "/metrics").body.decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), None)


@pytest.mark.parametrize(
    ("error", "state"),
    [(SourceChanged("gone"), State.SUSPENDED_ON_ERROR), (ServiceUnavailable("away"), State.ERROR_RETRY)],
)
def test_metrics_and_states_show_the_age_of_a_source_that_is_not_captured(
    relay: Relay, shop: Database, clock: FakeClock, error: Exception, state: State
) -> None:
    assert gauge(relay, 'databus_capture_lag_seconds{physical="shop"}') == 0.0
    shop.identify_errors.extend([error] * 10_000 if state is State.ERROR_RETRY else [])
    shop.fail(error)
    wait_for_state(relay, state)
    clock.advance_ms(HOUR_MS)
    assert gauge(relay, 'databus_capture_lag_seconds{physical="shop"}') == 3_600.0
    assert gauge(relay, 'databus_capture_lag_changes{physical="shop"}') is None
    assert (state_of(relay)["lagMs"], state_of(relay)["lagChanges"]) == (HOUR_MS, None)


def test_a_client_that_is_gone_lags_by_the_age_of_what_it_was_not_sent(
    relay: Relay, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the time between two commits, which stands still for as long as the database is quiet."""
    get(relay, "/stream", output="frames", scn=1, headers={"X-Dbus-Client": "copier"})
    lag = 'databus_client_lag_seconds{client="copier",physical="shop"}'
    assert gauge(relay, lag) == 0.0, "there is nothing that it was not sent"
    shop.add(order(5), order(6))
    published(relay, "shop", 6)
    for seconds in (60, 3_600):
        monkeypatch.setattr("databus.relay._metrics.time.time", lambda now=AT_US / 1e6 + seconds: now)
        assert gauge(relay, lag) == pytest.approx(seconds, abs=0.001)


def test_a_client_of_a_source_that_is_dead_lags_with_it(relay: Relay, shop: Database, clock: FakeClock) -> None:
    get(relay, "/stream", output="frames", scn=1, headers={"X-Dbus-Client": "copier"})
    shop.fail(SourceChanged("gone"))
    wait_for_state(relay, State.SUSPENDED_ON_ERROR)
    clock.advance_ms(HOUR_MS)
    assert gauge(relay, 'databus_client_lag_seconds{client="copier",physical="shop"}') == 3_600.0
