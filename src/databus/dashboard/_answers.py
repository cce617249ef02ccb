"""What each endpoint of the table answers; `ANSWERS` lists the methods. A request has passed all checks before it
comes here.
"""

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from databus.core import (
    AccessDenied,
    DatabusError,
    MalformedRequest,
    ServiceUnavailable,
    TooManyRequests,
    UnknownSource,
)
from databus.dashboard._alert_rules import RULES
from databus.dashboard._board import Board
from databus.dashboard._endpoint import ApiEndpoint
from databus.dashboard._endpoint_table import ENDPOINTS
from databus.dashboard._error_texts import entry_for, error_for, event_for, seen_by
from databus.dashboard._guard import RequestGuard
from databus.dashboard._openapi import openapi
from databus.dashboard._operations import Operation, Operations, last_of_each
from databus.dashboard._rights import Principal
from databus.dashboard._sessions import SESSION_S, Sessions
from databus.dashboard._watch import Watch, next_turn_s, turn_of
from databus.dashboard._watcher import Watcher
from databus.operate import hide_in_text
from databus.relay import Audit, read_audit

_READ_AT_ONCE: Final = 8
_STREAMS_MAX: Final = 200
"""Pages that follow the status at a time."""
_STREAMS_OF_ONE_MAX: Final = 100
"""The same of one principal, so that one cannot take all."""
_WRITE_S_MAX: Final = 30.0
"""How long a reader of the status may take for one piece of it."""
_LIST_S_MAX: Final = 10.0
"""How long a list of several parts waits for one of them."""
_OVER_MAX: Final = 200
"""Alerts that are over, in one answer."""
_CHART_US: Final = 6 * 3_600_000_000
"""How far back charts go by default."""
_FAILURES_MAX: Final = 30
"""Sign-ins of one address that may fail in a minute."""
_ADDRESSES_MAX: Final = 1_000
"""Addresses whose failures are remembered; the oldest is forgotten for a new one."""
ANONYMOUS: Final = Principal("", frozenset(), frozenset())
"""Of a call without a sign-in."""


@dataclass
class ApiCall:
    """One request to the API, read and checked."""

    request: web.Request
    endpoint: ApiEndpoint
    principal: Principal = ANONYMOUS
    cookie: str = ""
    """The value by which it is signed in; empty with a token, or without a sign-in."""
    path: Mapping[str, str] = field(default_factory=dict)
    """The variable parts of its path, by name."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Its parameters, checked; those that are missing have their default."""

    @property
    def address(self) -> str:
        """The network address that it comes from."""
        return self.request.remote or "unknown"


class Answers:
    """Runs in the loop's thread; what reads a disk or asks a part runs in threads beside it."""

    def __init__(self, board: Board, watcher: Watcher, sessions: Sessions, guard: RequestGuard, folder: Path) -> None:
        self.board = board
        self._watcher = watcher
        self.sessions = sessions
        self._guard = guard
        self._folder = folder
        self._operations = Operations(Audit(folder))
        self._readers = ThreadPoolExecutor(_READ_AT_ONCE, "dashboard-read")
        # By address: one that guesses tokens does not lock out others.
        self._failures: dict[str, deque[float]] = {}
        self._streams = Counter[Principal]()
        self._texts: dict[Principal, tuple[int, str]] = {}
        self._ending = asyncio.Event()

    def end(self) -> None:
        """End all streams, and begin no further read; nothing is waited for."""
        self._ending.set()
        self._operations.close()
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def _read(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    @staticmethod
    async def _ask(watch: Watch, principal: Principal, work: Callable[[], Any], s_max: float | None = None) -> Any:
        """What a part answers. Raises `ServiceUnavailable` if it does not answer: at once where that is known, else
        after `s_max`. Raises the part's own error in the words that the principal may see.
        """
        if watch.unseen:
            # It is known not to answer: a thread that waits for it would only block the next request.
            raise ServiceUnavailable(f"{watch.name} does not answer: {watch.unseen_for(principal)}")
        answer = watch.reads.submit(work)
        try:
            return await asyncio.wait_for(answer, s_max)
        except TimeoutError:
            raise ServiceUnavailable(f"{watch.name} has not answered in time") from None
        except DatabusError as error:
            raise error_for(principal, error) from error

    # Who asks

    async def session(self, call: ApiCall) -> web.Response:
        """GET /session."""
        principal = call.principal
        known = None if principal is ANONYMOUS else {"name": principal.name, "rights": sorted(principal.rights)}
        return json_answer({"principal": known})

    async def sign_in(self, call: ApiCall) -> web.Response:
        """POST /session."""
        now_s = time.monotonic()
        failures = self._failures.setdefault(call.address, deque(maxlen=_FAILURES_MAX))
        while len(self._failures) > _ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        if len(failures) == _FAILURES_MAX and failures[0] > now_s - 60:
            raise TooManyRequests("too many sign-ins have failed in the last minute; try again later")
        try:
            value, principal = self.sessions.sign_in(call.given["token"])
        except AccessDenied:
            failures.append(now_s)
            raise
        answer = json_answer({"principal": {"name": principal.name, "rights": sorted(principal.rights)}})
        answer.set_cookie(
            self.sessions.cookie,
            value,
            max_age=SESSION_S,
            httponly=True,
            samesite="Strict",
            path="/",
            secure=self._guard.is_https,
        )
        return answer

    async def sign_out(self, call: ApiCall) -> web.Response:
        """DELETE /session."""
        self.sessions.sign_out(call.cookie)
        answer = json_answer({"principal": None})
        answer.del_cookie(self.sessions.cookie, path="/")
        return answer

    async def openapi(self, call: ApiCall) -> web.Response:
        """GET /openapi.json."""
        del call
        return json_answer(openapi())

    # What there is to see

    async def graph(self, call: ApiCall) -> web.Response:
        """GET /graph."""
        return json_answer(self.board.graph(call.principal))

    async def status(self, call: ApiCall) -> web.Response:
        """GET /status."""
        return json_answer(self.board.status(call.principal))

    async def events(self, call: ApiCall) -> web.StreamResponse:
        """GET /events: one status a second. A slow reader skips some and gets the newest."""
        if self._streams.total() >= _STREAMS_MAX or self._streams[call.principal] >= _STREAMS_OF_ONE_MAX:
            raise TooManyRequests(f"{_STREAMS_MAX} pages are open already, or {_STREAMS_OF_ONE_MAX} of yours")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._streams[call.principal] += 1
        try:
            await response.prepare(call.request)
            while not self._ending.is_set() and self._still_admits(call):
                text = self._status_text(call.principal)
                await asyncio.wait_for(response.write(f"event: status\ndata: {text}\n\n".encode()), _WRITE_S_MAX)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), next_turn_s(time.monotonic()))
        except TimeoutError:  # a reader that does not read: an orderly close would wait for it to take what is left
            if call.request.transport is not None:
                call.request.transport.abort()
        except ConnectionError:
            response.force_close()
        finally:
            self._streams[call.principal] -= 1
        return response

    def _status_text(self, principal: Principal) -> str:
        """The status of a principal as JSON, made once a turn for all their tabs."""
        turn = turn_of(time.monotonic())
        turn_of_text, text = self._texts.get(principal, (None, ""))
        if turn_of_text != turn:
            text = json.dumps(self.board.status(principal), default=str)
            # Texts of an earlier turn are not used again, and would add up.
            self._texts = {who: entry for who, entry in self._texts.items() if entry[0] == turn}
            self._texts[principal] = turn, text
        return text

    def _still_admits(self, call: ApiCall) -> bool:
        """Whether the follower is still signed in: a page may stay open for days."""
        if call.cookie:
            return self.sessions.of_cookie(call.cookie) == call.principal
        return self.sessions.knows(call.principal)

    async def metrics(self, call: ApiCall) -> web.Response:
        """GET /metrics."""
        status = self.board.status(call.principal)
        nodes_seen = [entry["node"] for entry in (*status["outputs"], *status["sources"])]
        wanted = call.given["node"]
        if wanted is not None and wanted not in nodes_seen:
            raise UnknownSource(f"no node {wanted[:100]!r} here")
        nodes = nodes_seen if wanted is None else [wanted]
        since_us = call.given["since_us"] or time.time_ns() // 1000 - _CHART_US
        return json_answer(await self._read(partial(self.board.numbers.history, nodes, since_us)))

    async def source(self, call: ApiCall) -> web.Response:
        """GET /sources/{relay}/{source}."""
        source = call.path["source"]
        _, watch = self.board.source(call.path["relay"], source, call.principal)
        answer = await self._ask(watch, call.principal, partial(watch.part.show_source, source))
        return json_answer({**answer, **_page(answer["tables"], call.given, lambda table: str(table["table"]))})

    async def tables(self, call: ApiCall) -> web.Response:
        """GET /outputs/{pipeline}/{output}/tables."""
        output = call.path["output"]
        watch, _ = self.board.output(call.path["pipeline"], output, call.principal)
        written = watch.seen.status["outputs"][output]
        page = _page(written.get("tables") or [], call.given, str)
        return json_answer({**page, "more": written.get("tables_more") or 0})

    async def journal(self, call: ApiCall) -> web.Response:
        """GET /journal."""
        given = call.given
        parameters = {"output": given["output"], "limit": given["limit"], "before_us": given["before_us"] or 0}
        answers = await self._of_pipelines(
            call, "journal", **{name: value for name, value in parameters.items() if value is not None}
        )
        merged = _merged(answers, "events", "at_us", given["limit"])
        return json_answer({**merged, "events": [event_for(call.principal, event) for event in merged["events"]]})

    async def audit(self, call: ApiCall) -> web.Response:
        """GET /audit: of this dashboard, and of the pipelines."""
        answers = await self._of_pipelines(call, "audit", limit=call.given["limit"])
        if call.given["pipeline"] is None:
            own = await self._read(lambda: {"entries": list(self._audit_here(call.principal))})
            answers["dashboard"] = own
        merged = _merged(answers, "entries", "at", call.given["limit"])
        return json_answer({**merged, "entries": [entry_for(call.principal, entry) for entry in merged["entries"]]})

    def _audit_here(self, principal: Principal) -> Iterator[Mapping[str, Any]]:
        for entry in last_of_each(list(read_audit(self._folder))):
            if principal.sees(entry.get("asked", {}).get("project")):
                yield entry

    async def letters(self, call: ApiCall) -> web.Response:
        """GET /letters."""
        parameters = {} if call.given["output"] is None else {"output": call.given["output"]}
        answers = await self._of_pipelines(call, "letters", **parameters)
        counts = [{"pipeline": name, **count} for name, answer in answers.items() for count in _rows(answer, "counts")]
        return json_answer({"counts": counts, "unanswered": _unanswered(answers)})

    async def letter_rows(self, call: ApiCall) -> web.Response:
        """GET /letters/rows."""
        watch, part = self.board.pipeline(call.given["pipeline"], call.principal)
        parameters = {
            "rows": 1,
            "limit": call.given["limit"],
            **({"output": call.given["output"]} if call.given["output"] else {}),
        }
        return json_answer(await self._ask(watch, call.principal, partial(part.show, "letters", **parameters)))

    async def config(self, call: ApiCall) -> web.Response:
        """GET /config."""
        watch, part = self.board.pipeline(call.given["pipeline"], call.principal)
        shown = await self._ask(watch, call.principal, partial(part.show, "config"))
        return json_answer({**shown, "problem": hide_in_text(str(shown.get("problem", "")))})

    async def trace(self, call: ApiCall) -> web.Response:
        """GET /trace."""
        watch, part = self.board.pipeline(call.given["pipeline"], call.principal)
        parameters = {name: call.given[name] for name in ("table", "key", "since_s", "limit")}
        return json_answer(await self._ask(watch, call.principal, partial(part.show, "trace", **parameters)))

    async def batches(self, call: ApiCall) -> web.Response:
        """GET /batches."""
        watch, part = self.board.pipeline(call.given["pipeline"], call.principal)
        answer = await self._ask(watch, call.principal, partial(part.show, "batches"))
        return json_answer({"chains": [seen_by(call.principal, chain) for chain in _rows(answer, "chains")]})

    async def lineage(self, call: ApiCall) -> web.Response:
        """GET /lineage."""
        answers = await self._of_pipelines(call, "lineage")
        tables = [{"pipeline": name, **table} for name, answer in answers.items() for table in _rows(answer, "tables")]
        return json_answer({"tables": tables, "unanswered": _unanswered(answers)})

    async def alerts(self, call: ApiCall) -> web.Response:
        """GET /alerts."""
        machine = self._watcher.alerts
        listed: dict[str, Any] = {
            name: [
                {**alert.to_json(), "silenced_until_us": machine.silenced_until_us(alert.id)}
                for alert in alerts
                if call.principal.sees(alert.project)
            ]
            for name, alerts in (("open", machine.open_ones()), ("over", machine.history()[:_OVER_MAX]))
        }
        rules = [
            {
                "name": rule.name,
                "when": rule.expression,
                "for_s": rule.for_s,
                "severity": rule.severity,
                "says": rule.says,
            }
            for rule in machine.rules
            if rule in RULES or call.principal.sees(None)  # others may name outputs of any project
        ]
        return json_answer({**listed, "rules": rules, "troubles": self._watcher.troubles})

    async def on_alert(self, call: ApiCall) -> web.Response:
        """POST /alerts/{id}/ack and /silence."""
        machine = self._watcher.alerts
        alert = machine.find(call.path["id"])
        if not call.principal.sees(alert.project):
            raise UnknownSource(f"no alert {call.path['id'][:100]!r} is open")
        parameters = {key: value for key, value in call.given.items() if value is not None}
        verb = _verb(call)
        operation = Operation(f"alert {verb}", alert.id, call.principal, call.address, alert.project, parameters)

        async def act() -> None:  # a coroutine, since the machine belongs to the loop's thread
            if verb == "ack":
                machine.acknowledge(alert.id, call.principal.name)
            else:
                machine.silence(alert.id, time.time() + 60 * call.given["minutes"])
            await self._watcher.save()

        await self._operations.do(operation, act)
        shown = {**alert.to_json(), "silenced_until_us": machine.silenced_until_us(alert.id)}
        return json_answer({"state": "done", "alert": shown})

    async def operations(self, call: ApiCall) -> web.Response:
        """GET /operations."""
        operations = [_shown(operation, call.principal) for operation in self._operations.seen_by(call.principal)]
        return json_answer({"operations": operations[: call.given["limit"]]})

    async def operation(self, call: ApiCall) -> web.Response:
        """GET /operations/{id}."""
        for operation in self._operations.seen_by(call.principal):
            if operation.id == call.path["id"]:
                return json_answer(_shown(operation, call.principal))
        raise UnknownSource(f"no operation {call.path['id'][:100]!r} here")

    async def _of_pipelines(self, call: ApiCall, verb: str, **parameters: Any) -> dict[str, Any]:
        """What the given pipeline answers, or all that the principal sees; of one that fails, `error` instead."""
        wanted = call.given["pipeline"]
        if wanted is not None:
            watch, part = self.board.pipeline(wanted, call.principal)
            return {
                watch.name: await self._ask(watch, call.principal, partial(part.show, verb, **parameters), _LIST_S_MAX)
            }
        pipelines = list(self.board.pipelines(call.principal))
        answers = await asyncio.gather(
            *(
                self._ask(watch, call.principal, partial(part.show, verb, **parameters), _LIST_S_MAX)
                for watch, part in pipelines
            ),
            return_exceptions=True,
        )
        return {
            watch.name: {"error": str(error_for(call.principal, answer))} if isinstance(answer, Exception) else answer
            for (watch, _), answer in zip(pipelines, answers, strict=True)
        }

    # What can be done

    async def on_output(self, call: ApiCall) -> web.Response:
        """POST /outputs/{pipeline}/{output}/{verb}, and those of its letters."""
        pipeline, output = call.path["pipeline"], call.path["output"]
        watch, part = self.board.output(pipeline, output, call.principal)
        work = partial(part.act, _verb(call), [output], _who(call), call.given)
        return await self._do(call, f"{pipeline}/outputs.{output}", output, (watch, watch.project), work)

    async def on_table(self, call: ApiCall) -> web.Response:
        """POST /tables/{pipeline}/{output}/{table}/{verb}."""
        pipeline, output, table = (call.path[name] for name in ("pipeline", "output", "table"))
        watch, part = self.board.output(pipeline, output, call.principal)
        given = {**call.given, "tables": [table]}
        work = partial(part.act, _verb(call), [output], _who(call), given)
        return await self._do(call, f"{pipeline}/outputs.{output}/{table}", table, (watch, watch.project), work)

    async def on_pipeline(self, call: ApiCall) -> web.Response:
        """POST /pipelines/{pipeline}/{verb}."""
        pipeline = call.path["pipeline"]
        watch, part = self.board.pipeline(pipeline, call.principal)
        work = partial(part.act, _verb(call), [], _who(call), call.given)
        return await self._do(call, pipeline, pipeline, (watch, watch.project), work)

    async def on_source(self, call: ApiCall) -> web.Response:
        """POST /sources/{relay}/{source}/{verb}."""
        relay, source = call.path["relay"], call.path["source"]
        project, watch = self.board.source(relay, source, call.principal)
        parameters = {name: call.given.get(name) for name in ("tables", "reason", "if_seen")}
        verb = "cancel" if call.endpoint.method == "DELETE" else _verb(call)
        work = partial(watch.part.act_on_source, verb, source, _who(call), **parameters)
        return await self._do(call, f"{relay}/sources.{source}", source, (watch, project), work)

    async def _do(
        self, call: ApiCall, target: str, name: str, of: tuple[Watch, str | None], work: Callable[[], Any]
    ) -> web.Response:
        """Do an operation on a target. name: what `confirm` must repeat. of: the part that does it, and the project."""
        watch, project = of
        parameters = {key: value for key, value in call.given.items() if value is not None}
        kind, verb = call.endpoint.path.split("/")[1].removesuffix("s"), _verb(call)
        verb = f"cancel {verb}" if call.endpoint.method == "DELETE" else verb
        operation = Operation(f"{kind} {verb}", target, call.principal, call.address, project, parameters)
        if call.given.get("confirm", name) != name:
            error = MalformedRequest(f"confirm: write {name!r}, the name of what this is about")
            await self._operations.refuse(operation, error)
            raise error
        key = call.request.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key) <= 200:
            raise MalformedRequest("Idempotency-Key: expected 1 to 200 characters")
        try:
            done = await self._operations.do(operation, lambda: watch.acts.submit(work), key)
        except DatabusError as error:
            raise error_for(call.principal, error) from error
        answer = json_answer(_shown(done, call.principal), status=call.endpoint.status)
        answer.headers["Location"] = f"/api/v1/operations/{done.id}"
        return answer


def _shown(operation: Operation, principal: Principal) -> dict[str, Any]:
    message = "" if operation.error is None else str(error_for(principal, operation.error))
    return {**operation.to_json(), "message": message, "result": seen_by(principal, operation.result)}


def _verb(call: ApiCall) -> str:
    return call.endpoint.path.rpartition("/")[2]


def _who(call: ApiCall) -> dict[str, str]:
    return {"principal": call.principal.name, "address": call.address, "via": "dashboard"}


def _merged(answers: Mapping[str, Any], name: str, order: str, limit: int) -> dict[str, Any]:
    """The rows of all answers, the newest first, each with `where` it is from."""
    rows = [{"where": where, **row} for where, answer in answers.items() for row in _rows(answer, name)]
    kind, none = (str, "") if order == "at" else (int, 0)
    rows.sort(key=lambda row: row[order] if isinstance(row.get(order), kind) else none, reverse=True)
    return {name: rows[:limit], "unanswered": _unanswered(answers)}


def _rows(answer: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A list in an answer, without malformed rows: a part of another version does not spoil the list of all."""
    listed = answer.get(name)
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


def _page(tables: Sequence[Any], given: Mapping[str, Any], name_of: Callable[[Any], str]) -> dict[str, Any]:
    """One page of a list of tables that is ordered by name: those whose names match, and how many match in all."""
    like, offset = (given["like"] or "").casefold(), given["offset"]
    chosen = [table for table in tables if like in name_of(table).casefold()]
    return {"tables": chosen[offset : offset + given["limit"]], "count": len(chosen)}


def _unanswered(answers: Mapping[str, Any]) -> dict[str, str]:
    return {where: answer["error"] for where, answer in answers.items() if "error" in answer}


def json_answer(value: Any, status: int = 200) -> web.Response:
    """An answer in JSON."""
    body = json.dumps(value, default=str, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")


Answer = Callable[[Answers, ApiCall], Awaitable[web.StreamResponse]]


def _answer_of(endpoint: ApiEndpoint) -> Answer:
    named: dict[str, Answer] = {
        "GET /session": Answers.session,
        "POST /session": Answers.sign_in,
        "DELETE /session": Answers.sign_out,
        "GET /openapi.json": Answers.openapi,
        "GET /graph": Answers.graph,
        "GET /status": Answers.status,
        "GET /events": Answers.events,
        "GET /metrics": Answers.metrics,
        "GET /sources/{relay}/{source}": Answers.source,
        "GET /outputs/{pipeline}/{output}/tables": Answers.tables,
        "GET /journal": Answers.journal,
        "GET /audit": Answers.audit,
        "GET /letters": Answers.letters,
        "GET /letters/rows": Answers.letter_rows,
        "GET /trace": Answers.trace,
        "GET /batches": Answers.batches,
        "GET /lineage": Answers.lineage,
        "GET /alerts": Answers.alerts,
        "GET /operations": Answers.operations,
        "GET /operations/{id}": Answers.operation,
        "GET /config": Answers.config,
    }
    by_kind: dict[str, Answer] = {
        "outputs": Answers.on_output,
        "letters": Answers.on_output,
        "tables": Answers.on_table,
        "sources": Answers.on_source,
        "pipelines": Answers.on_pipeline,
        "alerts": Answers.on_alert,
    }
    return named.get(endpoint.key) or by_kind[endpoint.path.split("/")[1]]


ANSWERS: Final[Mapping[str, Answer]] = {endpoint.key: _answer_of(endpoint) for endpoint in ENDPOINTS}
"""The method for each endpoint of the table, by its key."""
