"""Either relay of a chain is killed, at crash points and at random: the copy stays the same log, byte for byte, and a
reader that goes from one to the other and back is given every group once.
"""

import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from databus.core import CRASH_POINTS, Pair, ServiceUnavailable, SourceCheckpoint, TransientError
from databus.link import RelayClient
from databus.testing import RelayProcess
from databus.wire import Commit, FrameGroup, done_by, position_after
from tests.relay.support import WAIT_S, until

POINTS = [point for point in CRASH_POINTS if point.startswith(("log.", "capture."))]
OPTIONS = {
    "capture": {"poll_ms": 20, "retry_ms_min": 1, "retry_ms_max": 50, "progress_ms": 100},
    "log": {"fsync_interval_ms": 5, "segment_bytes_max": 60_000, "free_bytes_min": 0},
}
MOCK = {
    "type": "mock",
    "rows_per_transaction": 30,
    "group_bytes_max": 3000,
    "transactions_per_s": 200,
    "chunk_rows": 50,
}


class Wanderer:
    """Reads on at one relay or another, as chance has it, until it is to stop."""

    def __init__(self, urls: Sequence[str], chance: random.Random) -> None:
        self._urls = urls
        self._chance = chance
        self._ending = threading.Event()
        self.pieces: list[bytes] = []
        self.position = SourceCheckpoint()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                try:
                    self._read()
                except TransientError:
                    self._ending.wait(0.02)
        except BaseException as error:  # noqa: BLE001 - raised in `stop`
            self.error = error

    def _read(self) -> None:
        client = RelayClient(self._chance.choice(self._urls))
        size = self._chance.choice([1, 20_000, 200_000])
        with client.stream("shop", self.position, wait_ms=20, bytes_max=size) as stream:
            for groups in stream:
                for group in groups:
                    if group.frames:  # repeated commit frames share a place, and one who comes later is not given all
                        self.pieces.append(bytes(b"".join(group.pieces)))
                    commit = Commit.from_header(group.commit)
                    self.position = position_after(commit, self.position, uuid=stream.uuid, log=stream.log)

    def wait_for(self, pair: Pair) -> None:
        until(lambda: self.error or self.position.pair >= pair, f"the reader at {pair}")

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(WAIT_S)
        if self.error is not None:
            raise self.error


def log_of(relay: RelayProcess) -> list[FrameGroup]:
    """Up to the first commit frame at the head: how many that repeat it come along depends on where a segment ends."""
    client = RelayClient(relay.url)
    end = client.head("shop").published.pair
    found: list[FrameGroup] = []
    with client.stream("shop", "beginning", to=end, follow=True) as stream:
        for groups in stream:
            for group in groups:
                found.append(group)
                if done_by(group.commit) >= end:
                    return found
    raise AssertionError(f"the stream ended before its head, {end}")


def bytes_of(groups: Sequence[FrameGroup]) -> list[bytes]:
    return [bytes(b"".join(group.pieces)) for group in groups]


def start_again(relay: RelayProcess, crash_at: str = "") -> None:
    """Kill a relay and start it again, to die at a crash point."""
    relay.kill()
    relay.env = {"DATABUS_CRASH_AT": crash_at} if crash_at else {}
    try:
        relay.start()
    except ServiceUnavailable:  # it was quick to die
        assert crash_at
        assert not relay.is_running


def ask_for_snapshot(relay: RelayProcess) -> None:
    """A source takes no request until it is connected, some time after its relay has started."""

    def is_asked() -> bool:
        with suppress(ServiceUnavailable):
            RelayClient(relay.url).request_snapshot("shop", ["main.events"])
            return True
        return False

    until(is_asked, "a snapshot that was asked for")


def rounds(folder: Path, seed: int, points: Sequence[str], killed_at_random: int) -> None:
    chance = random.Random(seed)
    first = RelayProcess(folder / "a", {"shop": MOCK}, **OPTIONS)
    with ExitStack() as stack:
        stack.enter_context(first)
        second = stack.enter_context(
            RelayProcess(folder / "b", {"shop": {"type": "relay", "url": first.url}}, **OPTIONS)
        )
        reader = Wanderer([first.url, second.url], chance)
        stack.callback(reader.stop)
        for turn, point in enumerate([*points, *[""] * killed_at_random]):
            if turn % 2:
                ask_for_snapshot(first)
            victim = second if turn % 3 else first
            start_again(victim, f"{point}:{chance.randint(1, 30)}" if point else "")
            if point:
                deadline = time.monotonic() + 3  # some are passed only where a snapshot or a retention is at work
                until(lambda who=victim, at=deadline: not who.is_running or time.monotonic() > at)
            else:
                time.sleep(chance.uniform(0.05, 0.4))
            start_again(victim)
        client = RelayClient(first.url)
        client.pause(["shop"])
        until(lambda: client.states()[0]["status"] == "paused", "a pause")
        copy = RelayClient(second.url)
        until(lambda: copy.head("shop").published == client.head("shop").published, "the copy at the end")
        end = client.head("shop").published
        reader.wait_for(end.pair)
        reader.stop()
        whole = log_of(first)
        assert bytes_of(log_of(second)) == bytes_of(whole)
        assert reader.pieces == bytes_of([group for group in whole if group.frames])


def test_a_chain_is_one_log_whichever_of_its_relays_is_killed(tmp_path, seed):
    rounds(tmp_path, seed, random.Random(seed).sample(POINTS, 2), 1)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_chain_is_one_log_at_every_crash_point(tmp_path, seed):
    rounds(tmp_path, seed, [*POINTS, *POINTS], 20)
