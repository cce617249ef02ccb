"""OpenLineage events of a run: START, RUNNING, FAIL and COMPLETE of each output, to a file or an address.

A thread of its own makes and sends them, so that no batch waits for the receiver. While that is away, the newest
`_WAITING_MAX` events wait; older ones are dropped and counted. Start with `OpenLineage.take`; `event_of` is pure.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.error import URLError
from urllib.request import Request, urlopen
from uuid import uuid4

from databus import __version__
from databus.core import Backoff, DatabusError
from databus.operate import logger_of
from databus.pipeline.comparing import TableLineage, table_lineages
from databus.pipeline.graph import Graph

if TYPE_CHECKING:
    from databus.link import RelayClient

PRODUCER: Final = f"urn:databus:{__version__}"
_SPEC: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = "https://openlineage.io/spec/facets"
_EVERY_S: Final = 600.0
_WAITING_MAX: Final = 1_000
_ANSWER_S_MAX: Final = 10.0
_LOOK_S: Final = 1.0
_AGAIN_MS: Final = (1_000, 60_000)
_END_S_MAX: Final = 3.0
_ALL: Final = ""
"""Instead of an output's name: all that have begun and not ended."""

_logger = logger_of("databus.pipeline")


class JobEvent(NamedTuple):
    """Something that happened to an output's job."""

    kind: str
    """START, RUNNING, FAIL or COMPLETE."""
    output: str
    at_us: int
    message: str = ""


def event_of(
    moment: JobEvent, run_id: str, namespace: str, pipeline: str, lineages: Iterable[TableLineage]
) -> dict[str, Any]:
    """The event. lineages: of the tables that come to the output."""
    lineages_here = [lineage for lineage in lineages if lineage.output == moment.output]
    facets = {}
    if moment.message:
        error_facet = {"message": moment.message, "programmingLanguage": "Python"}
        facets["errorMessage"] = {**_facet("ErrorMessageRunFacet", "1-0-1"), **error_facet}
    kind = {"processingType": "STREAMING", "integration": "DATABUS", "jobType": "JOB"}
    return {
        "eventType": moment.kind,
        "eventTime": datetime.fromtimestamp(moment.at_us / 1e6, UTC).isoformat(timespec="milliseconds"),
        "producer": PRODUCER,
        "schemaURL": _SPEC,
        "run": {"runId": run_id, "facets": facets},
        "job": {
            "namespace": namespace,
            "name": f"{pipeline}.{moment.output}",
            "facets": {"jobType": {**_facet("JobTypeJobFacet", "2-0-4"), **kind}},
        },
        "inputs": [_input(lineage) for lineage in lineages_here],
        "outputs": [_output(lineage) for lineage in lineages_here],
    }


def _facet(name: str, version: str) -> dict[str, str]:
    return {"_producer": PRODUCER, "_schemaURL": f"{_FACETS}/{version}/{name}.json#/$defs/{name}"}


def _input(lineage: TableLineage) -> dict[str, Any]:
    namespace, name = lineage.source
    columns = [] if lineage.schema is None else [(column.name, column.type) for column in lineage.schema.columns]
    return {"namespace": namespace, "name": name, "facets": _schema(columns)}


def _output(lineage: TableLineage) -> dict[str, Any]:
    namespace, name = lineage.target
    dataset = {"namespace": lineage.source[0], "name": lineage.source[1]}
    fields = {
        column.name: {"inputFields": [{**dataset, "field": field} for field in column.origins]}
        for column in lineage.columns or ()
        if column.origins is not None
    }
    facets: dict[str, Any] = _schema([(column.name, column.type) for column in lineage.columns or ()])
    if fields:
        facets["columnLineage"] = {**_facet("ColumnLineageDatasetFacet", "1-2-0"), "fields": fields}
    return {"namespace": namespace, "name": name, "facets": facets}


def _schema(columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    if not columns:
        return {}
    fields = [{"name": name, "type": kind} for name, kind in columns]
    return {"schema": {**_facet("SchemaDatasetFacet", "1-2-0"), "fields": fields}}


class Sink:
    """Where events go: a file, one line for each, or an address. token: for the address."""

    def __init__(self, to: str, token: str | None, folder: Path) -> None:
        self._url = to if to.startswith(("http://", "https://")) else None
        self._file = folder / to
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def put(self, event: Mapping[str, Any]) -> None:
        """Send one. Raises OSError, HTTPException."""
        text = json.dumps(event, separators=(",", ":")).encode()
        if self._url is None:
            with self._file.open("ab") as file:
                file.write(text + b"\n")
            return
        request = Request(self._url, text, self._headers)  # noqa: S310 - http and https alone come here
        with urlopen(request, timeout=_ANSWER_S_MAX):  # noqa: S310
            pass


class OpenLineage:
    """The lineage of one run; use as a context manager."""

    def __init__(
        self, graph: Graph, again_ms: float = _AGAIN_MS[0], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.graph: Callable[[], Graph] = lambda: graph
        """The pipeline as it is now."""
        config = graph.config
        section = config.sections.lineage
        self.is_wanted = section.to is not None
        token = None if section.token is None else section.token.get_secret_value()
        self._sink = Sink(section.to or "", token, config.folder)
        self._namespace = section.namespace
        self._backoff = Backoff(again_ms, _AGAIN_MS[1])
        self._clock = clock
        self._relay = config.relay.url
        self._runs: dict[str, str] = {}  # by output
        self._sent_s: dict[str, float] = {}  # by output: when its last event was made
        self._moments: deque[JobEvent] = deque()
        self._waiting: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._is_ending = False
        self.dropped = 0
        """Events that were never delivered."""
        self.trouble = ""
        """Why events cannot be delivered now."""
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)

    def __enter__(self) -> Self:
        if self.is_wanted:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        if self.is_wanted:
            self._thread.join(_END_S_MAX + _ANSWER_S_MAX)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event of the run, from any thread, without waiting for the receiver."""
        if not self.is_wanted:
            return
        if event["event"] == "relay":
            self._relay = event["url"]
        moments = list(self._moments_of(event))
        if moments:
            with self._changed:
                self._moments += moments
                self._changed.notify_all()

    def _moments_of(self, event: Mapping[str, Any]) -> Iterable[JobEvent]:
        at_us, outputs = event.get("at_us") or time.time_ns() // 1000, event.get("outputs", ())
        match event["event"]:
            case "started":
                return [JobEvent("START", output, at_us) for output in outputs]
            case "failed":
                return [JobEvent("FAIL", output, at_us, event["message"]) for output in outputs]
            case "batch" if any(control["kind"] == "schema" for control in event.get("changes", ())):
                return [JobEvent("RUNNING", event["output"], at_us)]
            case "stopped":
                failed = [JobEvent("FAIL", output, at_us, "; ".join(event["reasons"])) for output in event["failed"]]
                return [*failed, JobEvent("COMPLETE", _ALL, at_us)]
        return ()

    def _run(self) -> None:
        wait_s = _LOOK_S
        while True:
            with self._changed:
                if not self._moments and not self._is_ending:
                    self._changed.wait(wait_s)
                moments, is_ending = [*self._moments, *self._due()], self._is_ending
                self._moments.clear()
            self._make(moments)
            is_taken = self._send()
            if is_ending:
                self._give_up()
                return
            if is_taken:
                self._backoff.reset()
            wait_s = _LOOK_S if is_taken else self._backoff.next_ms() / 1e3

    def _due(self) -> list[JobEvent]:
        now_s, at_us = self._clock(), time.time_ns() // 1000
        return [JobEvent("RUNNING", name, at_us) for name, sent_s in self._sent_s.items() if now_s - sent_s >= _EVERY_S]

    def _make(self, moments: Sequence[JobEvent]) -> None:
        if not moments:
            return
        graph = self.graph()
        lineages = table_lineages(graph, self._client(graph))
        for moment in moments:
            for output in list(self._runs) if moment.output == _ALL else [moment.output]:
                self._put(moment._replace(output=output), graph, lineages)

    def _put(self, moment: JobEvent, graph: Graph, lineages: Sequence[TableLineage]) -> None:
        output, is_new = moment.output, moment.output not in self._runs
        if is_new != (moment.kind == "START"):
            return  # START comes once, whatever restarts; after the end nothing comes
        run_id = self._runs.setdefault(output, str(uuid4()))
        if len(self._waiting) >= _WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(event_of(moment, run_id, self._namespace, graph.config.name, lineages))
        self._sent_s[output] = self._clock()
        if moment.kind in ("FAIL", "COMPLETE"):
            del self._runs[output], self._sent_s[output]

    def _client(self, graph: Graph) -> "RelayClient | None":
        from databus.link import RelayClient

        url = self._relay
        try:
            return None if url is None else RelayClient(url, access=graph.config.access, read_ms_max=5_000)
        except DatabusError:
            return None

    def _send(self) -> bool:
        """Send the waiting events; returns whether all were delivered."""
        while self._waiting:
            try:
                self._sink.put(self._waiting[0])
            except (OSError, HTTPException, URLError) as error:
                if str(error) != self.trouble:
                    _logger.warning("lineage events cannot be delivered; they are sent again", why=str(error))
                self.trouble = str(error)
                return False
            self._waiting.popleft()
            self.trouble = ""
        return True

    def _give_up(self) -> None:
        self.dropped += len(self._waiting)
        if self.dropped:
            _logger.warning("lineage events were dropped: they could not be delivered", count=self.dropped)
