"""The HTTP server of a running pipeline: health, metrics, status, events and commands. Start with `HealthServer`.

| path | answers |
|---|---|
| `/admin/live` | `GOOD`, as long as the process answers |
| `/admin/ready` | `GOOD`, or 503 and `BAD` with a line for each output, source and relay in trouble |
| `/metrics` | Prometheus |
| `/status` | what `databus status --json` prints; it asks the relay and the targets |
| `/status/light` | the same without positions and backlog: it asks nobody |
| `/events` | the events of the run, as server-sent events |
| `/graph`, `/journal`, `/audit`, `/letters`, `/config` | what `databus.pipeline.running._shown` says |
| POST `/pause`, `/resume`, `/drain`, `/stop`, `/reload`, `/replay`, `/drop` | what `Commands` does |
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from databus.core import ConfigError, DatabusError, MalformedRequest
from databus.operate import logger_of
from databus.pipeline.running._commands import CHANGING
from databus.pipeline.running._control import Handle
from databus.pipeline.running._event_streams import EventStreams
from databus.pipeline.running._shown import SHOWN
from databus.pipeline.telling import OutputState, unwell, worst_backlogs
from databus.relay import HTTP_LOGGER, Tokens, admit, error_response, hide_from_pages, keep_renewing

_START_S_MAX: Final = 30.0
_STOP_S_MAX: Final = 3.0
_ANSWERS_AT_ONCE: Final = 4
_ASK_RELAY: Final = frozenset({"/metrics", "/status"})
_REQUEST_BYTES_MAX: Final = 1 << 16

_logger = logger_of("databus.pipeline")

Status = Mapping[str, Any]


class HealthServer:
    """Answers, from a thread of its own, requests with one of the tokens.

    status: the status of now; with True also with the backlog, for which the relay is asked, which may take seconds.
    handle: carries out commands.
    """

    def __init__(
        self, host: str, port: int, tokens: Tokens, status: Callable[[bool], Status], handle: Handle | None = None
    ) -> None:
        self._address = (host, port)
        self._tokens = tokens
        self._status = status
        self._handle = handle
        self._thread = threading.Thread(target=self._run, name="pipeline-http", daemon=True)
        self._bound = threading.Event()
        self._error: OSError | None = None
        self._ending: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._workers = ThreadPoolExecutor(_ANSWERS_AT_ONCE, thread_name_prefix="pipeline-http")
        self._commanders = ThreadPoolExecutor(_ANSWERS_AT_ONCE, thread_name_prefix="pipeline-http-command")
        self.events = EventStreams(self._loop)
        self.url = ""

    def start(self) -> None:
        """Bind and serve. Raises `ConfigError` if the address cannot be bound."""
        self._thread.start()
        self._bound.wait(_START_S_MAX)
        if self._error is not None:
            host, port = self._address
            raise ConfigError(f"run.http: {host}:{port}: {self._error.strerror or self._error}")

    def stop(self) -> None:
        """Close the port; callable twice."""
        if self._thread.is_alive() and self._ending is not None:
            self._loop.call_soon_threadsafe(self._end, self._ending)
            self._thread.join(_STOP_S_MAX)
        for pool in (self._workers, self._commanders):
            pool.shutdown(wait=False, cancel_futures=True)

    def _end(self, ending: asyncio.Event) -> None:
        self.events.end()
        ending.set()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._bound.set()
            self._loop.close()

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        app = web.Application(client_max_size=_REQUEST_BYTES_MAX)
        answers = {
            "/admin/live": self._live,
            "/admin/ready": self._ready,
            "/metrics": self._metrics,
            "/status": self._state,
            "/status/light": self._light,
        }
        for path, answer in answers.items():
            app.router.add_get(path, partial(self._answer, answer, asks_relay=path in _ASK_RELAY))
        app.router.add_get("/events", self._follow)
        if self._handle is not None:
            for verb in SHOWN:
                app.router.add_get(f"/{verb}", partial(self._do, verb, self._handle))
            for verb in CHANGING:
                app.router.add_post(f"/{verb}", partial(self._do, verb, self._handle))
        app.on_response_prepare.append(hide_from_pages)
        runner = web.AppRunner(app, access_log=None, logger=HTTP_LOGGER, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        renewing = asyncio.ensure_future(keep_renewing(self._tokens))
        try:
            site = web.TCPSite(runner, *self._address)
            await site.start()
            self.url = site_url(runner)
            self._bound.set()
            await self._ending.wait()
        finally:
            renewing.cancel()
            await runner.cleanup()

    async def _answer(
        self, answer: Callable[[], web.Response], request: web.Request, *, asks_relay: bool
    ) -> web.Response:
        """asks_relay: it may take seconds, so a worker does it; quick answers must not queue behind slow ones."""
        try:
            admit(request, self._tokens.headers, "pipeline")
            return await self._loop.run_in_executor(self._workers, answer) if asks_relay else answer()
        except DatabusError as error:
            return error_response(error)

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        try:
            admit(request, self._tokens.headers, "pipeline")
            return await self.events.serve(request)
        except DatabusError as error:
            return error_response(error)

    async def _do(self, verb: str, handle: Handle, request: web.Request) -> web.Response:
        """Carry out a command: its parameters are the query of a GET, the JSON of a POST."""
        try:
            admit(request, self._tokens.headers, "pipeline")
            request_body = await _body_of(request) if request.method == "POST" else dict(request.query)
            work = partial(handle, verb, request_body, f"address {request.remote}")
            return json_answer(await self._loop.run_in_executor(self._commanders, work))
        except DatabusError as error:
            return error_response(error)
        except web.HTTPException:
            raise
        except Exception as error:
            _logger.exception("a command ended by a defect", verb=verb)
            return error_response(DatabusError(f"a defect: {type(error).__name__}: {error}"))

    def _live(self) -> web.Response:
        return web.Response(text="GOOD\n")

    def _ready(self) -> web.Response:
        lines = unwell(self._status(False))
        status = HTTPStatus.SERVICE_UNAVAILABLE if lines else HTTPStatus.OK
        return web.Response(status=status, text="\n".join(["BAD" if lines else "GOOD", *lines, ""]))

    def _metrics(self) -> web.Response:
        body = render_pipeline_metrics(self._status(True))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _state(self) -> web.Response:
        return json_answer(self._status(True))

    def _light(self) -> web.Response:
        return json_answer(self._status(False))


async def _body_of(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request. Its content type is required: no HTML form of another site can send it."""
    if request.content_type != "application/json":
        raise MalformedRequest("a command is JSON: send the header `Content-Type: application/json`")
    try:
        value = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedRequest("the body: expected a JSON object")
    return value


def json_answer(value: Mapping[str, Any]) -> web.Response:
    """An answer in JSON; values that JSON has no form for become text."""
    body = json.dumps(value, default=str, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def site_url(runner: web.AppRunner) -> str:
    """The address at which it listens; with port 0 the system has chosen the port."""
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _PipelineCollector:
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        by_output, by_physical = ("output",), ("output", "physical")
        state = GaugeMetricFamily(
            "databus_output_state",
            "1 for the state that this output is in, 0 for the others.",
            labels=("output", "state"),
        )
        rows = CounterMetricFamily("databus_output_rows", "Rows written since the pipeline started.", labels=by_output)
        batches = CounterMetricFamily("databus_output_batches", "Batches written since then.", labels=by_output)
        retries = CounterMetricFamily("databus_output_retries", "Restarts after an error since then.", labels=by_output)
        breaks = GaugeMetricFamily(
            "databus_journal_breaks",
            "Breaks between its batches, and batches without all rows of the log, found since then.",
            labels=by_output,
        )
        tables = GaugeMetricFamily("databus_output_tables", "Tables that it has written since then.", labels=by_output)
        age = GaugeMetricFamily("databus_output_batch_age_seconds", "Time since its last batch.", labels=by_output)
        lag_s = GaugeMetricFamily(
            "databus_output_lag_seconds",
            "Age of the oldest change that the database has committed and the output has not written.",
            labels=by_physical,
        )
        lag_rows = GaugeMetricFamily(
            "databus_output_lag_rows", "Rows that the relay has and the output has not.", labels=by_physical
        )
        held = GaugeMetricFamily(
            "databus_output_held", "1 if the relay still has what the output needs next, else 0.", labels=by_physical
        )
        letters = GaugeMetricFamily(
            "databus_output_dead_letters", "Rows that the target refused, kept as dead letters.", labels=by_output
        )
        captured = GaugeMetricFamily(
            "databus_pipeline_source_captured",
            "0 while the relay cannot capture this source, else 1; the reason is in /status.",
            labels=("source",),
        )
        answers = GaugeMetricFamily(
            "databus_pipeline_relay_answers", "0 while the relay does not answer the pipeline, else 1.", value=None
        )
        free = GaugeMetricFamily(
            "databus_disk_free_ratio", "How much of the disk is free that holds the pipeline's state: 1 is all."
        )
        if self._status.get("disk_free") is not None:
            free.add_metric((), self._status["disk_free"])
        answers.add_metric((), float(not self._status["relay_error"]))
        for name, source in self._status["sources"].items():
            captured.add_metric((name,), float(source["is_well"]))
        for name, output in self._status["outputs"].items():
            for output_state in OutputState:
                state.add_metric((name, output_state), float(output["state"] == output_state))
            rows.add_metric((name,), output["rows"])
            batches.add_metric((name,), output["batches"])
            retries.add_metric((name,), output["retries"])
            breaks.add_metric((name,), output.get("journal_breaks", 0))
            tables.add_metric((name,), len(output.get("tables", ())) + output.get("tables_more", 0))
            if output.get("dead_letters") is not None:
                letters.add_metric((name,), output["dead_letters"])
            if output["last_batch_us"]:
                age.add_metric((name,), max(time.time() - output["last_batch_us"] / 1e6, 0.0))
            for physical, worst in worst_backlogs(output).items():
                for family, value in ((lag_s, worst["lag_s"]), (lag_rows, worst["rows"]), (held, worst["held"])):
                    if value is not None:
                        family.add_metric((name, physical), float(value))
        yield from (answers, captured, free, state, rows, batches, retries, breaks, tables, letters, age)
        yield from (lag_s, lag_rows, held)
        yield from _flow_families(self._status["outputs"])


def _flow_families(outputs: Mapping[str, Any]) -> Iterator[Metric]:
    """Rows and bytes that outputs were sent, what filters dropped, and the time of each stage."""
    rows = CounterMetricFamily(
        "databus_output_rows_read",
        "Rows that came to it since the pipeline started, those included that filters drop.",
        labels=("output",),
    )
    size = CounterMetricFamily(
        "databus_output_bytes_read", "Bytes of the relay's log that came to it since then.", labels=("output",)
    )
    dropped = CounterMetricFamily(
        "databus_output_rows_dropped",
        "Rows that a filter on its way has dropped since then.",
        labels=("output", "filter"),
    )
    spent = CounterMetricFamily(
        "databus_output_stage_seconds",
        "Time spent on its batches since then, by stage, over all tasks together.",
        labels=("output", "stage"),
    )
    visible = HistogramMetricFamily(
        "databus_output_commit_to_visible_seconds",
        "Of each batch since then: time from its newest commit until the target had it.",
        labels=("output",),
    )
    for name, output in outputs.items():
        flow = output.get("flow")
        if flow is not None:
            rows.add_metric((name,), flow["rows"])
            size.add_metric((name,), flow["bytes"])
            for path, count in flow["dropped"].items():
                dropped.add_metric((name, path.partition(".")[2]), count)
            for stage, ms in flow["ms"].items():
                spent.add_metric((name, stage), ms / 1e3)
        if output.get("visible") is not None:
            buckets = [(bound, float(count)) for bound, count in output["visible"]["buckets"].items()]
            visible.add_metric((name,), buckets, output["visible"]["sum_s"])
    yield from (rows, size, dropped, spent, visible)


def render_pipeline_metrics(status: Status) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry()
    registry.register(_PipelineCollector(status))
    return generate_latest(registry)
