"""Checks, while a pipeline runs, that the batches of its outputs follow each other and have all rows of the log.

Gaps between batches are seen as they come. The relay counts rows, asked by a thread that rests 99 times as long as it
worked, so that it takes a hundredth of a core at most. A gap is an event, `journal_break`, and counts in
`databus_journal_breaks`. `databus audit` checks the whole journal.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

from databus.core import DatabusError, Pair
from databus.pipeline.comparing import Audited, Chain, RangeCounts
from databus.pipeline.graph import Graph
from databus.pipeline.telling import OnEvent, last_batches

_EVERY_S: Final = 10.0
_REST: Final = 99.0
_PENDING_MAX: Final = 1_000
"""Counts that wait to be compared with the log; older ones are dropped."""
_END_S_MAX: Final = 1.0

ChainName = tuple[str, str]
"""An output and a physical source."""


class BatchReports:
    """Use as a context manager. graph, relay: what they are now; report: takes events."""

    def __init__(
        self, graph: Callable[[], Graph], relay: Callable[[], str | None], report: OnEvent, every_s: float = _EVERY_S
    ) -> None:
        self._graph = graph
        self._relay = relay
        self._report = report
        self._every_s = every_s
        self._lock = threading.Lock()
        self._chains: dict[ChainName, Chain] = {}
        self._pending: list[tuple[ChainName, RangeCounts]] = []
        config = graph().config
        for output in config.sections.outputs:
            for line in last_batches(config.state, output):
                self._chain(output, line["physical"]).take(line)
        self._wants_end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wants_end.set()
        self._thread.join(_END_S_MAX)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event of the run, from any thread, without waiting for the relay."""
        if event["event"] == "advanced":
            with self._lock:
                self._chain(event["output"], event["physical"]).take(event)

    def _chain(self, output: str, physical: str) -> Chain:
        return self._chains.setdefault((output, physical), Chain(output, physical))

    def _run(self) -> None:
        wait_s = self._every_s
        while not self._wants_end.wait(wait_s):
            began_s = time.monotonic()
            self._report_breaks()
            self._compare()
            wait_s = max(self._every_s, (time.monotonic() - began_s) * _REST)
        self._report_breaks()

    def _report_breaks(self) -> None:
        with self._lock:
            breaks = list(self._breaks())
        for (output, physical), start, end, message in breaks:
            self._say(output, physical, start, end, message)

    def _breaks(self) -> Iterator[tuple[ChainName, Pair, Pair, str]]:
        for key, chain in self._chains.items():
            self._pending += [(key, counted) for counted in chain.settled() if chain.is_counted]
            chain.is_counted = True
            for start, end, table in chain.breaks:
                tables = f"{key[1]}/{table}" if table else f"the tables of {key[1]}"
                yield key, start, end, f"no batch has the changes of {tables} from {start} to {end} (SCN, _seq)"
            for rows in chain.unbalanced:
                yield key, rows.start, rows.end, f"the batch from {rows.start} to {rows.end} (SCN, _seq): {rows}"
            chain.breaks.clear()
            chain.unbalanced.clear()
        del self._pending[:-_PENDING_MAX]

    def _compare(self) -> None:
        """Compare rows with the log; if its relay does not answer, again next time."""
        from databus.link import RelayClient

        url, graph = self._relay(), self._graph()
        with self._lock:
            pending, self._pending = self._pending, []
        if url is None:
            return
        client = RelayClient(url, access=graph.config.access)
        for number, (key, counted) in enumerate(pending):
            if self._wants_end.is_set() or f"outputs.{key[0]}" not in graph.config.nodes:
                continue
            audited = Audited(Chain(*key))
            try:
                audited.compare_one(graph, client, counted)
            except DatabusError as error:
                if error.retryable:
                    with self._lock:
                        self._pending = pending[number:] + self._pending
                    return
                continue  # the log no longer has that range
            if audited.missing or audited.surplus:
                self._say(*key, counted.start, counted.end, audited.why_not_whole)

    def _say(self, output: str, physical: str, start: Pair, end: Pair, message: str) -> None:
        batch = {"output": output, "physical": physical, "start": start, "end": end}
        at_us = time.time_ns() // 1000
        self._report({"event": "journal_break", **batch, "at_us": at_us, "error": "JournalBreak", "message": message})
