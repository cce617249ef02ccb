"""What a pipeline shows beside its status: graph, history, audit log, dead letters, configuration.

All of it comes from files, so it is shown for a pipeline that does not run, too. Start with `shown` and `PipelineFile`.
"""

import hashlib
import shlex
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from databus.core import ConfigError, InputError, ServiceUnavailable
from databus.formats import load_yaml
from databus.operate import hide_in_config, hide_in_text, is_secret_name
from databus.pipeline.checks import load_pipeline
from databus.pipeline.comparing import audit, table_lineages
from databus.pipeline.graph import Graph, NodeSpec, edge_label, is_held, name_of, physical_edges, state_of
from databus.pipeline.running._control import ask
from databus.pipeline.running._dead_letters import outputs_with_letters
from databus.pipeline.running._published import status_of
from databus.pipeline.running._reload_changes import refusals
from databus.pipeline.telling import read_journal, read_status

LIMIT_MAX: Final = 1_000
_TEXT_CHARS_MAX: Final = 4_000
_LOOK_BACK_S_MAX: Final = 366 * 86_400

if TYPE_CHECKING:
    from databus.link import Start

Request = Mapping[str, Any]


def graph_json(graph: Graph) -> dict[str, Any]:
    """Nodes by path (`outputs.copy`), and edges with the tables that pass."""
    config = graph.config
    nodes = [
        {"id": f"sources.{name}", "kind": "source", "name": name, "type": source.type}
        for name, source in config.sources.items()
    ]
    nodes += [
        {"id": path, "kind": node.kind.word, "name": node.name, "type": node.type, **_lane_of(node)}
        for path, node in config.nodes.items()
    ]
    edges = [{"from": f"sources.{name}", "to": path, "label": "log"} for name, path in physical_edges(graph)]
    edges += [{"from": edge.source, "to": edge.target, "label": edge_label(graph, edge)} for edge in graph.edges]
    return {"pipeline": config.name, "nodes": nodes, "edges": edges}


def _lane_of(node: NodeSpec) -> dict[str, str]:
    lane = getattr(node.config, "lane", None)
    return {} if lane is None else {"lane": lane}


def _journal(graph: Graph, request: Request) -> dict[str, Any]:
    """The newest events first. output: only of this one."""
    output, before_us = request.get("output"), _number(request, "before_us", 0, 1 << 62)
    events = (
        event
        for event in read_journal(graph.config.state, _number(request, "since_us", 0, 1 << 62))
        if (not output or output == event.get("output") or output in event.get("outputs", ()))
        and (not before_us or event["at_us"] < before_us)
    )
    return {"events": _newest(events, request)}


def _audit(graph: Graph, request: Request) -> dict[str, Any]:
    from databus.relay import read_audit  # late: it imports a server

    return {"entries": _newest(read_audit(graph.config.state), request)}


def _letters(graph: Graph, request: Request) -> dict[str, Any]:
    """Counts by output and table; with `rows` also the letters themselves. output: only of this one."""
    wanted, limit = request.get("output"), _number(request, "limit", 100, LIMIT_MAX)
    outputs = [letters_of for letters_of in outputs_with_letters(graph) if wanted in (None, "", letters_of.name)]
    by_table = Counter[tuple[str, str]]()  # a command acts on all files of a table
    for letters_of in outputs:
        for file in letters_of.files():
            by_table[letters_of.name, file.source] += file.count
    counts = [{"output": output, "table": table, "count": count} for (output, table), count in by_table.items()]
    if not request.get("rows"):
        return {"counts": counts}
    letters = (
        {
            "output": letters_of.name,
            "table": letters.source,
            "pair": letter.pair,
            "id": _cut(letter.id),
            "at_us": letter.at_us,
            "reason": _cut(letter.reason),
            "row": _cut(letter.row),
        }
        for letters_of in outputs
        for letters in letters_of.read()
        for letter in letters.letters
    )
    return {"counts": counts, "letters": list(islice(letters, limit))}


def _configuration(graph: Graph, _: Request) -> dict[str, Any]:
    """The text of the file that runs, with references instead of their values, and what a reload would change. Whatever
    may be secret is hidden.
    """
    path, written = graph.config.path, graph.config.written
    answer: dict[str, Any] = {"file": str(path), "config": hide_in_config(written), "changes": [], "problem": ""}
    answer["hash"] = written_hash(path)  # before it is read, so that a later change is noticed
    try:
        answer["changes"] = list(islice(differences(written, load_yaml(path)), LIMIT_MAX))
        refused = refusals(graph.config, load_pipeline(path).config) if answer["changes"] else []
        answer["problem"] = hide_in_text("\n".join(refusal.in_file(path) for refusal in refused))
    except ConfigError as error:
        answer["problem"] = hide_in_text(str(error))
    return answer


def written_hash(path: Path) -> str:
    """A hash of a file as it is now; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def differences(before: Any, after: Any, where: str = "", *, is_secret: bool = False) -> Iterator[dict[str, Any]]:
    """Where two configurations differ: `where`, and both values, None for a missing one.

    >>> list(differences({"a": {"b": 1, "password": "x"}}, {"a": {"password": "y"}}))
    [{'where': 'a.b', 'before': 1, 'after': None}, {'where': 'a.password', 'before': '(hidden)', 'after': '(hidden)'}]
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            inner = f"{where}.{name}" if where else str(name)
            secret = is_secret or is_secret_name(str(name))
            yield from differences(before.get(name), after.get(name), inner, is_secret=secret)
    elif before != after:
        both = {"before": before, "after": after}
        yield {"where": where, **{name: hide_in_config(value, is_secret=is_secret) for name, value in both.items()}}


def _trace(graph: Graph, request: Request) -> dict[str, Any]:
    """See `trace`. key: `id=17&region=eu`. since_s: how far to look back; with 0, to the oldest. `command` does
    the same with filters of typed rows, which need a Spark session of their own.
    """
    from databus.pipeline.comparing import as_shown, trace  # late: it imports the client

    since_s = _number(request, "since_s", 3_600, _LOOK_BACK_S_MAX)
    start: Start = datetime.now(UTC) - timedelta(seconds=since_s) if since_s else "earliest"
    key = dict(parse_qsl(str(request.get("key", "")), keep_blank_values=True))

    def reads(full: str) -> bool:
        return any(node.needs_relay and node.choice().selects(full) for node in graph.inputs.values())

    # The relay may have tables of other teams; only those that this pipeline reads may be shown.
    table, limit = str(request.get("table", "")), _number(request, "limit", 100, LIMIT_MAX)
    changes = deque(trace(graph, graph.config.relay_client(), table, key, start, may_show=reads), maxlen=limit)
    words = [*(f"{name}={value}" for name, value in key.items()), "--since", f"{since_s}s" if since_s else "earliest"]
    command = shlex.join(["databus", "trace", str(graph.config.path), table, *words, "--spark"])
    return {"changes": as_shown(reversed(changes)), "command": command}


def _batches(graph: Graph, _: Request) -> dict[str, Any]:
    """See `databus.pipeline.comparing._batch_audit`."""
    return {"chains": [chain.to_json() for chain in audit(graph, graph.config.relay_client_if_there())]}


def _lineage(graph: Graph, _: Request) -> dict[str, Any]:
    """See `table_lineages`."""
    return {"tables": [lineage.to_json() for lineage in table_lineages(graph, graph.config.relay_client_if_there())]}


SHOWN: Final[Mapping[str, Callable[[Graph, Request], Mapping[str, Any]]]] = {
    "graph": lambda graph, _: graph_json(graph),
    "journal": _journal,
    "audit": _audit,
    "letters": _letters,
    "config": _configuration,
    "trace": _trace,
    "batches": _batches,
    "lineage": _lineage,
}
"""By verb."""
_SCANS: Final = frozenset({"trace", "batches"})
_SCANS_MAX: Final = 2
_SCANNING: Final = threading.BoundedSemaphore(_SCANS_MAX)


def shown(verb: str, graph: Graph, request: Request) -> Mapping[str, Any]:
    """Answer one of the verbs of `SHOWN`. Raises `InputError` for an invalid request, `ServiceUnavailable` while enough
    others have the log read: that takes minutes, and a command to stop the pipeline needs a thread too.
    """
    if verb not in _SCANS:
        return SHOWN[verb](graph, request)
    if not _SCANNING.acquire(blocking=False):
        raise ServiceUnavailable(f"{verb}: the log is being read for {_SCANS_MAX} others; ask again")
    try:
        return SHOWN[verb](graph, request)
    finally:
        _SCANNING.release()


class PipelineFile:
    """A pipeline by its file: if it runs, it is asked; else its files are read."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if there is no such file, or it cannot be read."""
        self.path = path
        self.name = name_of(path)
        self._graph: tuple[tuple[int, ...], Graph] | None = None
        self._state: Path | None = None

    def ask(self, verb: str, **request: Any) -> Mapping[str, Any]:
        """The answer. Raises as `databus.pipeline.ask`, and `ConfigError` for a file with problems."""
        state = self._state_now()
        if is_held(state):
            return ask(state, verb, **request)
        if verb in ("status", "backlog"):
            return self._status(state) if verb == "status" else status_of(self.path) or self._status(state)
        if verb in SHOWN:
            return shown(verb, self._loaded(), request)
        raise InputError("this pipeline does not run; start it with `databus run`")

    def _state_now(self) -> Path:
        """The state folder: the last known one while the file has a mistake, or names another one during a run."""
        known = self._state
        try:
            state = state_of(self.path)
        except ConfigError:
            if known is None:
                raise
            return known
        if known is not None and state != known and is_held(known):
            return known
        self._state = state
        return state

    def _status(self, state: Path) -> dict[str, Any]:
        status = read_status(state)
        if status is None:
            name = self._loaded().config.name
            status = {"pipeline": name, "pid": None, "sources": {}, "outputs": {}, "relay": None, "relay_error": ""}
        elif status["state"] == "ended":
            return status
        return {**status, "state": "stopped"}

    def _loaded(self) -> Graph:
        """The graph, read again only if the file has changed: it is asked for once a second."""
        if not self.path.is_file():
            raise ConfigError(f"{self.path}: No such file or directory")
        stat = self.path.stat()
        seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._graph is None or self._graph[0] != seen:
            self._graph = seen, load_pipeline(self.path)
        return self._graph[1]


def _newest(items: Iterator[dict[str, Any]], request: Request) -> list[dict[str, Any]]:
    limit = _number(request, "limit", 100, LIMIT_MAX)
    return list(deque(items, maxlen=limit))[::-1] if limit else []


def _number(request: Request, name: str, default: int, most: int) -> int:
    value = request.get(name, default)
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) > most:
        raise InputError(f"{name}: {str(value)[:100]!r} is not a whole number in 0..{most}")
    return int(value)


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}… ({len(text)} characters)"
