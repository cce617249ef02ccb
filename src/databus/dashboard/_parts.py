"""What a dashboard looks at and steers: pipelines and relays, by their files or their addresses.

A pipeline is asked by its control socket or over HTTP, a relay over HTTP, as commands do. Every call blocks, within a
bound; nothing is remembered here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

from databus.core import (
    AccessDenied,
    ConfigError,
    DatabusError,
    FatalError,
    InputError,
    ServiceUnavailable,
    StateDiffers,
    split_names,
)
from databus.dashboard._shapes import checked, understood
from databus.formats import answer_in_json, load_yaml
from databus.link import Access, RelayClient
from databus.pipeline import PipelineFile, relay_at
from databus.relay import load_relay, relay_url

_ASK_S_MAX: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1 << 24
_PATHS: Final = {"status": "/status/light", "backlog": "/status"}
_ACT_S_MAX: Final = 150.0
"""A reload examines the whole file, a replay asks the target for each row, and a trace reads a log."""
_CONSUMERS_MAX: Final = 50
_QUICK: Final = frozenset({"/status/light", "/status", "/graph"})
"""Asked all the time: a pipeline that takes longer than `_ASK_S_MAX` for it is shown as one that does not answer."""
_CHANGING: Final = frozenset({"pause", "resume", "drain", "stop", "throttle", "rebuild", "reload", "replay", "drop"})
_ERRORS: Final = {kind.http_status: kind for kind in (InputError, AccessDenied, StateDiffers, ServiceUnavailable)}
_CONFIG_ERROR: Final = ConfigError.__name__
"""Known by name, since its status is that of every wrong request: its message may quote a file."""

Who = Mapping[str, str]
"""Who requested a change: principal and address."""


class AsksPipeline(Protocol):
    """How a pipeline is asked."""

    def ask(self, verb: str, **request: Any) -> Mapping[str, Any]:
        """What it answers. Raises a `DatabusError`."""
        ...


class PipelineUrl:
    """A pipeline by the address of its `run --http`."""

    def __init__(self, url: str, token: str | None) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname or address.username is not None:
            raise ConfigError(f"--pipeline {url}: expected an address such as http://127.0.0.1:11116")
        self._make = HTTPConnection if address.scheme == "http" else HTTPSConnection
        self._host, self._port = address.hostname, address.port
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.url = url

    def ask(self, verb: str, **request: Any) -> Mapping[str, Any]:
        """See `AsksPipeline.ask`."""
        path = _PATHS.get(verb, f"/{verb}")
        try:
            if verb in _CHANGING:
                headers = {**self._headers, "Content-Type": "application/json"}
                status, body = self._answer("POST", path, json.dumps(request), headers)
            else:
                query = urlencode({name: value for name, value in request.items() if value is not None})
                status, body = self._answer("GET", f"{path}?{query}" if query else path, None, self._headers)
            answer = answer_in_json(body)
        except (OSError, HTTPException, ValueError) as error:
            raise ServiceUnavailable(f"{self.url}: the pipeline does not answer: {error}") from error
        if not isinstance(answer, dict):
            raise ServiceUnavailable(f"{self.url}: answered with something that is no pipeline's")
        if status >= InputError.http_status:
            kind = ConfigError if answer.get("error") == _CONFIG_ERROR else _ERRORS.get(status, FatalError)
            raise kind(str(answer.get("message", "it does not say why")))
        return answer

    def _answer(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        timeout_s = _ASK_S_MAX if path in _QUICK else _ACT_S_MAX
        connection = self._make(self._host, self._port, timeout=timeout_s)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(_ANSWER_BYTES_MAX)
        finally:
            connection.close()


class _WithRelay:
    """relay: returns the relay's address, None if it is unknown or does not run, and how to sign in there."""

    def __init__(self, where: str, relay: Callable[[], tuple[str | None, Access]]) -> None:
        self.where = where
        self._relay = relay

    def act_on_source(self, verb: str, source: str, who: Who, **request: Any) -> Any:
        """Pause or resume a source, begin or cancel a snapshot; see `act_on_source`."""
        with understood(verb):
            return act_on_source(*self._relay_access(), verb, source, who, **request)

    def show_source(self, source: str) -> dict[str, Any]:
        """The tables of a source with their schemas, and who reads it; see `show_source`."""
        with understood("source"):
            return show_source(*self._relay_access(), source)

    def _relay_access(self) -> tuple[str, Access]:
        url, access = self._relay()
        if url is None:
            raise ServiceUnavailable(f"{self.where}: its relay does not run, or is not known here")
        return url, access


class PipelinePart(_WithRelay):
    """One pipeline."""

    kind: Final = "pipeline"

    def __init__(self, where: str, pipeline: AsksPipeline, relay: Callable[[], tuple[str | None, Access]]) -> None:
        super().__init__(where, relay)
        self._pipeline = pipeline

    def look(self) -> Mapping[str, Any]:
        """Its status, for which it asks neither its relay nor its targets."""
        return checked("status", self._pipeline.ask("status"))

    def graph(self) -> Mapping[str, Any]:
        """Its nodes and edges."""
        return checked("graph", self._pipeline.ask("graph"))

    def measure(self) -> Mapping[str, Any]:
        """The same with positions and backlog, for which it asks relay and targets: takes seconds."""
        return checked("backlog", self._pipeline.ask("backlog"))

    def show(self, verb: str, **request: Any) -> Mapping[str, Any]:
        """An answer to journal, audit, letters, config, trace, batches or lineage."""
        return checked(verb, self._pipeline.ask(verb, **request))

    def act(self, verb: str, outputs: Sequence[str], who: Who, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change outputs, or, without any, the pipeline itself. given: the parameters of the request."""
        seen = None if given.get("if_seen") is None else dict.fromkeys(outputs or [""], given["if_seen"])
        tables = given.get("tables") or None
        tables = split_names(tables) if isinstance(tables, str) else tables
        request = {"by": dict(who), "reason": given["reason"], "if_seen": seen, "tables": tables}
        request |= {name: given[name] for name in ("rows", "bytes", "count", "if_file") if given.get(name) is not None}
        return self._pipeline.ask(verb, outputs=list(outputs), **request)


class RelayPart(_WithRelay):
    """One relay."""

    kind: Final = "relay"

    def look(self) -> Mapping[str, Any]:
        """The states of its sources, as a pipeline's status has them."""
        url, access = self._relay_access()
        with understood("status"):
            sources = {str(state["name"]): state for state in _client(url, access).states()}
        return checked("status", {"relay": url, "sources": sources})


Part = PipelinePart | RelayPart


def act_on_source(url: str, access: Access, verb: str, source: str, who: Who, **request: Any) -> Any:
    """Pause or resume a source of a relay, begin or cancel a snapshot. The relay's audit log has who, and why."""
    client = _client(url, access, f"dashboard: {who['principal']} at {who['address']}")
    tables = request.pop("tables", None)
    match verb:
        case "pause":
            return client.pause([source], **request)
        case "resume":
            return client.resume([source], **request)
        case "cancel":
            return client.cancel_snapshot(source, (tables or "").split(","), **request)
        case _:
            return client.request_snapshot(source, (tables or "").split(","), **request)


def show_source(url: str, access: Access, source: str) -> dict[str, Any]:
    """The tables of a source, every version of their schemas, and who reads it; no value of a row."""
    client = _client(url, access)
    tables: dict[str, list[dict[str, Any]]] = {}
    for schema in client.register([f"{source}/*"]):
        table = schema.table
        columns = [{"name": column.name, "type": column.db_type or column.type} for column in table.columns]
        version = {"version": schema.version, "key": list(table.key), "columns": columns}
        tables.setdefault(table.source, []).append(version)
    consumers = [
        {"client": consumer["name"], "seen_us": consumer["timestampLastAccessMs"] * 1000, "bytes": stream["numBytes"],
         "scn": stream["position"].get("scn"), "is_at_end": stream["atTail"], "sources": stream["sources"]}
        for consumer in client.consumers(_CONSUMERS_MAX)
        for stream in consumer["streams"]
        if stream["physical"] == source
    ]  # fmt: skip
    listed = [{"table": name, "versions": versions} for name, versions in sorted(tables.items())]
    return {"tables": listed, "consumers": consumers}


def _client(url: str, access: Access, name: str = "dashboard") -> RelayClient:
    return RelayClient(url, access=access, name=name, read_ms_max=round(_ASK_S_MAX * 1e3))


def part_of_file(path: Path) -> tuple[str, Part]:
    """The name and the part that the file of a pipeline or a relay describes. Raises `ConfigError`."""
    if not path.is_file():
        raise ConfigError(f"{path}: No such file or directory")
    if load_yaml(path).keys() & {"inputs", "outputs"}:
        file = PipelineFile(path)
        return file.name, PipelinePart(str(path), file, lambda: relay_at(path))
    config = load_relay(path)
    name = config.folder.parent.name if path.stem == "relay" else path.stem
    return name or "relay", RelayPart(str(path), lambda: (relay_url(config), Access.of(config.operator_token_file)))


def part_of_pipeline(url: str, access: Access) -> tuple[str, Part]:
    """A pipeline by the address of its HTTP server."""
    token = None if access.token_file is None else access.token_file.read_text().split("\n")[0].strip()
    pipeline = PipelineUrl(url, token)

    def relay() -> tuple[str | None, Access]:
        return checked("status", pipeline.ask("status")).get("relay"), access

    return _host_of(url), PipelinePart(url, pipeline, relay)


def part_of_relay(url: str, access: Access) -> tuple[str, Part]:
    """A relay by its address. Raises `ConfigError` for an invalid one."""
    _client(url, access)
    return _host_of(url), RelayPart(url, lambda: (url, access))


def _host_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url


def why(error: Exception) -> str:
    """The text of an error for people."""
    return str(error) if isinstance(error, DatabusError) else f"{type(error).__name__}: {error}"
