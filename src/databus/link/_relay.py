"""RelayClient: what a relay can be asked, as Python objects. It blocks, and never asks twice: `_follow` reconnects."""

import datetime as dt
import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

from databus.core import (
    UNREAD_TABLES,
    ConfigError,
    CorruptData,
    DatabusError,
    InputError,
    Pair,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
    StreamCut,
    TransientError,
    UnknownSource,
    us_of,
)
from databus.filters import StreamFilter
from databus.link._answers import Head, Range, RangeControl, RegisteredSchema, SourceInfo
from databus.link._connection import Sockets
from databus.link._frame_stream import FrameStream
from databus.link._http import Body, Endpoint
from databus.link._peers import Peers
from databus.link._tls import Access
from databus.schema import TableSchema
from databus.wire import VERSION, answer_log

T = TypeVar("T")
FRAMES: Final = "application/vnd.databus.frames"
ADDRESSES: Final = r"^https?://[^/,\s]+/?(,\s*https?://[^/,\s]+/?)*$"
"""How configurations write the address of a relay, or those of several of one database."""
ACCEPTED: Final = f"{FRAMES}; version={VERSION}"
StartName = Literal["beginning", "earliest", "latest", "state"]
STATE: Final = SourceCheckpoint(log=answer_log(""), snapshots={UNREAD_TABLES: 0})
"""Where a consumer stands that begins with a state of the bootstrap service, whatever the relay has: in an answer whose
name that service is yet to give.
"""
Start = SourceCheckpoint | StartName | dt.datetime
"""A position, a word for one, or a time: all committed then or later, and what shares a group with it."""


@dataclass(frozen=True, slots=True)
class LookBack:
    """How a bootstrap service is asked for what has left the relay's log."""

    by_table: bool = False
    """Whether one knows of each table where it stands, and may ask for others in the middle of an answer."""
    every: bool = False
    """Whether to be given each change, in the place of what became of them."""

    first_images: bool = False
    """Whether to be told of each row that was changed that it is removed: where rows are known by another key than the
    table's, or chosen in a way that the filter does not say."""

    def query(self) -> dict[str, str]:
        """As parameters."""
        asked = {"by_table": self.by_table and "1", "first_images": self.first_images and "1"}
        return {name: value for name, value in {**asked, "look_back": self.every and "all"}.items() if value}


class RelayClient:
    """One relay, or several of one database. Any thread may ask; each question has a connection of its own.

        relay = RelayClient("http://127.0.0.1:11115")
        with relay.stream("shop", relay.position("shop", start="earliest"), follow=True) as stream:
            for groups in stream: ...

    url: one address, or several: as a list, or in one text with commas between. The one that answered last is asked
    first; where it does not answer, or has not what is asked for, the others are.
    token, token_file: what the relay wants to be shown, or where it is; without them the environment variable
    DATABUS_TOKEN is looked at. ca_file, certificate_file, key_file: for `https://`; see `Access`. Without them the
    variables DATABUS_CA_FILE, DATABUS_CERTIFICATE_FILE and DATABUS_KEY_FILE are. access: all files at once. name: how
    the relay's statistics call this client.

    Errors come as the relay's own, by class: `PositionPurged`, `PositionForeign`, `AccessDenied`, `UnknownSource`...;
    `ServiceUnavailable` if it does not answer within `connect_ms_max`, or falls silent for `read_ms_max`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        certificate_file: str | Path | None = None,
        key_file: str | Path | None = None,
        access: Access | None = None,
        name: str | None = None,
        connect_ms_max: int = 5_000,
        read_ms_max: int = 60_000,
    ) -> None:
        files = Access.of(token_file, ca_file, certificate_file, key_file)
        if access is not None and files != Access():
            raise ConfigError("files, and an access that has its own: give one of them")
        urls = addresses_of(url)
        self._sockets = Sockets()
        self._peers = Peers(
            [
                Endpoint.of(
                    address,
                    token=token,
                    access=access or files,
                    connect_ms_max=connect_ms_max,
                    read_ms_max=read_ms_max,
                    client=name,
                )
                for address in urls
            ],
            self._is_closed,
        )
        self.url = ",".join(urls)
        self.filters = StreamFilter()
        self.look_back: LookBack | None = None
        self._service: str | None = None  # which gave what this relay has lost
        self.asks: Mapping[str, str] = {}  # parameters of all that is read
        self._tables: dict[int, TableSchema] = {}
        self._tables_lock = threading.Lock()

    def clone(self) -> "RelayClient":
        """One for the same relay that is closed by itself; what is known of schemas is shared."""
        other = object.__new__(RelayClient)
        vars(other).update(vars(self))
        other._sockets = Sockets()
        other._peers = self._peers.clone(other._is_closed)
        return other

    def bootstrap(self, url: str, how: LookBack | None = None) -> "RelayClient":
        """The bootstrap service that the relay names, asked with the same token and filter; closed with this one."""
        other = object.__new__(RelayClient)
        vars(other).update(vars(self))
        kind, how = "bootstrap service", how or self.look_back
        named = self._peers.now.named_by(url, f"its {kind}", "bootstrap.url", kind=kind)
        other.url, other._peers, other._service = url, Peers([named], self._is_closed), None
        other.look_back, other.asks = None, {} if how is None else how.query()
        return other

    def looking_back(self, how: LookBack) -> "RelayClient":
        """One for the same relay whose ranges and streams come from the bootstrap service that it names, where they
        have left its log; and any position is one that it can go on from.
        """
        other = self.clone()
        other.look_back = how
        return other

    def _or_past(self, ask: Callable[["RelayClient"], T]) -> T:
        """What the relay answers; where it has lost that, and names a bootstrap service, what this does."""
        try:
            return ask(self)
        except PositionPurged as error:
            if self.look_back is None or error.bootstrap is None:
                raise
            self._service = error.bootstrap
        return ask(self.bootstrap(self._service))

    def filtered(self, filters: StreamFilter) -> "RelayClient":
        """One for the same relay whose streams and ranges have what passes a filter, in the definitions behind it."""
        other = self.clone()
        other.filters = filters
        return other

    def close(self) -> None:
        """End whatever waits for this relay, in any thread; nothing can be asked any more. Callable twice."""
        self._sockets.close()

    def leave(self, error: DatabusError) -> None:
        """Ask another relay next, if there are several: this one answers, and is of no use."""
        self._peers.leave(self._peers.now, error)

    def _is_closed(self) -> bool:
        return self._sockets.is_closed

    def _get(self, path: str, query: Mapping[str, Any], *, wait_ms: int = 0) -> Any:
        return self._peers.ask(lambda endpoint: self._json(endpoint, path, query, wait_ms=wait_ms))

    def _post(self, path: str, query: Mapping[str, Any], content: bytes | None = None) -> Any:
        """A command is for one relay: the one that answered last."""
        return self._json(self._peers.now, path, query, method="POST", content=content)

    def _json(self, endpoint: Endpoint, path: str, query: Mapping[str, Any], **how: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return _whole(lambda: Body(endpoint, self._sockets, path, given, **how).json())

    def sources(self) -> list[SourceInfo]:
        """The sources that the relay serves."""
        return [
            SourceInfo(
                str(source["name"]),
                int(source["id"]),
                str(source["physical"]),
                str(source["table"]),
                int(source["version"]),
                int(source["fingerprint"], 16),
                tuple(source["key"]),
            )
            for source in self._get("/sources", {"v": 2})
        ]

    def register(self, sources: Iterable[str | int]) -> list[RegisteredSchema]:
        """Every version of these sources' schemas. Raises `UnknownSource`."""
        query = {"sources": _joined(sources), **self._register_query()}
        return [_registered(version) for version in self._get("/register", query)]

    def tables(self) -> dict[str, TableSchema]:
        """The present definitions of all sources, by full name. One request for all: one for each of a thousand tables
        takes seconds.
        """
        sources = self.sources()
        versions = self.register(sorted({f"{source.physical}/*" for source in sources})) if sources else ()
        tables = {version.table.fingerprint: version.table for version in versions}
        return {source.name: tables.get(source.fingerprint) or self.table_of(source.fingerprint) for source in sources}

    def _register_query(self) -> dict[str, str]:
        return replace(self.filters, partition=None).query()

    def states(self, *, look: bool = False) -> list[Mapping[str, Any]]:
        """What each physical source is doing, as /controlSources/status says it. look: with its lag as it is now."""
        states: list[Mapping[str, Any]] = self._get("/controlSources/status", {"look": 1 if look else None})
        return states

    def consumers(self, most: int) -> list[dict[str, Any]]:
        """Who has asked in the last hour, so many at most, each with what is open."""
        names = self._get("/relayStats/outbound/http/clients", {})[:most]
        return [dict(self._get(f"/relayStats/outbound/http/client/{quote(name, safe='')}", {})) for name in names]

    def physicals(self) -> dict[str, bool]:
        """The physical sources that the relay is to capture, and whether it has a log of each by now."""
        return {str(state["name"]): state["SCN"] is not None for state in self.states()}

    def pause(self, physicals: Iterable[str], **why: str | None) -> list[Mapping[str, Any]]:
        """Have physical sources captured no further, and say what they are doing then; one that starts pauses after.

        why: `reason` for the audit log; `if_seen`, the status in which they were seen: raises `StateDiffers` where one
        is in another now. The same for the other commands.
        """
        query = {"sources": _joined(physicals), **why}
        states: list[Mapping[str, Any]] = self._post("/controlSources/pause", query)
        return states

    def resume(self, physicals: Iterable[str], **why: str | None) -> list[Mapping[str, Any]]:
        """Have paused sources go on, and suspended ones try again at once; say what they are doing then."""
        query = {"sources": _joined(physicals), **why}
        states: list[Mapping[str, Any]] = self._post("/controlSources/unpause", query)
        return states

    def request_snapshot(
        self, physical: str, tables: Iterable[str], where: str | None = None, **why: str | None
    ) -> Mapping[str, Any]:
        """Have tables (`db.table`) read anew, while changes go on; and say what the source is doing.

        where: only the rows for which this condition holds, in the database's own words. A source that is paused reads
        them when it is resumed. Raises `UnknownSource` for a table that is none, `SourceSuspended` where capture has
        stopped on an error.
        """
        query = {"sources": physical, "tables": ",".join(tables), "where": where, **why}
        states: list[Mapping[str, Any]] = self._post("/controlSources/snapshot", query)
        return states[0]

    def cancel_snapshot(self, physical: str, tables: Iterable[str], **why: str | None) -> Mapping[str, Any]:
        """Have tables (`db.table`) read no further, and say what the source is doing. Copies keep what they have."""
        query = {"sources": physical, "tables": ",".join(tables), **why}
        (told,) = self._post("/controlSources/cancelSnapshot", query)
        state: Mapping[str, Any] = told
        return state

    def choice(self, physical: str) -> str | None:
        """A hash of which tables and columns the relay that answered last captures; None where it does not say."""
        states: list[Mapping[str, Any]] = self._json(self._peers.now, "/controlSources/status", {"sources": physical})
        choice: str | None = states[0].get("choice") if states else None
        return choice

    @property
    def is_of_several(self) -> bool:
        """Whether it has several addresses."""
        return len(self._peers.endpoints) > 1

    def check_peers(self, physicals: Sequence[str], by_pattern: Collection[str] = ()) -> None:
        """Whether all addresses that answer now are relays of the same database, and capture the same of those physical
        sources whose tables are chosen by patterns: of a name, a relay says that it does not have it. Raises
        `ConfigError` naming two that are not. One that does not answer is looked at when its turn comes: relays refuse
        positions of other databases.
        """
        now, others = self._peers.now, self._peers.others
        uuids: dict[str, str] = {}
        for endpoint in others:
            try:
                states = self._json(endpoint, "/controlSources/status", {})
                there = {state["name"]: state["SCN"] for state in states}
                choices = {state["name"]: state.get("choice") for state in states}
                for physical in physicals:
                    if physical not in there:
                        raise ConfigError(
                            f"{endpoint.name} captures {', '.join(there) or 'nothing'}, and the {now.name} has "
                            f"{physical}: several addresses are those of relays of one database, by one name"
                        )
                    if there[physical] is not None:
                        uuids[physical] = uuids.get(physical) or self._uuid_at(now, physical)
                        self._check_uuid(endpoint, physical, uuids[physical])
                    if physical in by_pattern and capture_otherwise(self.choice(physical), choices[physical]):
                        raise ConfigError(f"{physical}: {otherwise(now.name, endpoint.name)}")
            except TransientError as error:
                self._peers.note_silent(endpoint, error)

    def _uuid_at(self, endpoint: Endpoint, physical: str) -> str:
        return str(self._json(endpoint, "/position", {"physical": physical, "start": "latest"})["uuid"])

    def _check_uuid(self, endpoint: Endpoint, physical: str, wanted: str) -> None:
        uuid = self._uuid_at(endpoint, physical)
        if uuid != wanted:
            raise ConfigError(
                f"{physical}: the {endpoint.name} serves database {uuid}, and the {self._peers.now.name} {wanted}: "
                f"several addresses are those of relays of one database"
            )

    def reload(self) -> Mapping[str, Any]:
        """Have the relay read its file again, and say what changed; nothing, with an `InputError`, for a bad file."""
        return dict(self._post("/reload", {}))

    def table_of(self, fingerprint: int) -> TableSchema:
        """The definition of a table by the fingerprint that stands in its frames; asked for once."""
        with self._tables_lock:
            known = self._tables.get(fingerprint)
        if known is not None:
            return known
        try:
            table = self._peers.ask(lambda endpoint: self._table_at(endpoint, fingerprint))
        except UnknownSource:
            if self._service is None:
                raise
            return self.bootstrap(self._service).table_of(fingerprint)  # this relay is younger than what it named
        with self._tables_lock:
            return self._tables.setdefault(fingerprint, table)

    def _table_at(self, endpoint: Endpoint, fingerprint: int) -> TableSchema:
        query = {"fingerprint": f"{fingerprint:016x}", **self._register_query()}
        versions = self._json(endpoint, "/register", query)
        if not versions:
            raise UnknownSource(f"{endpoint.name} knows no schema {fingerprint:016x}")
        table = TableSchema.from_json(versions[0]["table"])
        if table.fingerprint != fingerprint:
            raise CorruptData(
                f"{endpoint.name}: asked for schema {fingerprint:016x}, was told {table.fingerprint:016x}"
            )
        return table

    def chain(self, physical: str, start: str, *, definitions: int | None = None) -> Mapping[str, Any]:
        """What a relay has to know that copies a log, as /chain says it. definitions: how many it knows of these."""
        query = {"physical": physical, "start": start, "definitions": definitions}
        return dict(self._get("/chain", query))

    def head(
        self,
        physical: str | None = None,
        *,
        start: Start | None = None,
        scn: int | None = None,
        time_us: int | None = None,
    ) -> Head:
        """Where the log of a physical source stands, and the position asked for (without one, its end).

        Raises `PositionPurged` or `PositionForeign` for a position that this log cannot go on from.
        """
        query = {"physical": physical, "scn": scn, "time": time_us, **_start(start)}
        if scn is None and time_us is None and start is None:
            query["start"] = "latest"
        answer = self._get("/position", query)
        return Head(
            str(answer["physical"]),
            str(answer["uuid"]),
            str(answer["log"]),
            SourceCheckpoint.from_json(answer["position"], "position"),
            SourceCheckpoint.from_json(answer["oldest"], "oldest"),
            SourceCheckpoint.from_json(answer["published"], "published"),
            int(answer["published_us"]),
        )

    def position(
        self,
        physical: str | None = None,
        *,
        start: Start | None = None,
        scn: int | None = None,
        time_us: int | None = None,
    ) -> SourceCheckpoint:
        """The position that a start means: `beginning`, `earliest`, `latest`, after an SCN, or at a time."""
        try:
            return self.head(physical, start=start, scn=scn, time_us=time_us).position
        except PositionPurged as error:
            is_told = start == "beginning" or isinstance(start, SourceCheckpoint)
            if not is_told or self.look_back is None or error.bootstrap is None:
                raise
            return start if isinstance(start, SourceCheckpoint) else SourceCheckpoint()

    def range(
        self,
        physical: str,
        start: SourceCheckpoint,
        *,
        sources: Iterable[str | int] | None = None,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        to: Pair | None = None,
        partitions: int = 1,
        wait_ms: int = 0,
        stop_at_controls: bool = False,
    ) -> Range:
        """Where a batch of whole groups after `start` ends that fits the limits (one group at least, if there is one).

        A relay looks for some seconds at most: the range may end before any limit, even without a row; go on from its
        position.
        wait_ms: how long to wait for rows or controls of these sources; commits alone move the position when it has
        passed. splits: positions that cut the range into `partitions` of like size. stop_at_controls: end before a
        group that begins with a control, unless it is the first.
        """
        query = {
            "physical": physical,
            "sources": _joined(sources),
            "rows_max": rows_max,
            "bytes_max": bytes_max,
            "to": _to(to),
            "partitions": partitions,
            "wait_ms": wait_ms,
            "stop_at_controls": 1 if stop_at_controls else None,
            **self.filters.within(physical).query(),
            **_start(start),
        }
        answer = self._or_past(lambda client: client._get("/range", {**query, **client.asks}, wait_ms=wait_ms))  # noqa: SLF001 - one of its own
        return Range(
            SourceCheckpoint.from_json(answer["position"], "position"),
            int(answer["rows"]),
            int(answer["bytes"]),
            int(answer["groups"]),
            SourceCheckpoint.from_json(answer["published"], "published"),
            tuple(SourceCheckpoint.from_json(split, "splits") for split in answer["splits"]),
            tuple(
                RangeControl(
                    control["kind"], control["id"], int(control["fingerprint"], 16), (control["scn"], control["seq"])
                )
                for control in answer.get("controls", ())
            ),
            str(answer.get("log", "")),
            answer.get("oldest_us"),
            SourceCheckpoint.from_json(answer["start"], "start") if "start" in answer else None,
            bool(answer.get("has_controls", False)),
        )

    def stream(
        self,
        physical: str,
        start: Start,
        *,
        sources: Iterable[str | int] | None = None,
        to: Pair | None = None,
        follow: bool = False,
        wait_ms: int = 10_000,
        bytes_max: int | None = None,
        reads_anew: bool = False,
    ) -> FrameStream:
        """The groups after `start`, as they stand in the log: the first may begin below it.

        follow: stay on; else wait up to `wait_ms` for a first group and end with what is there. to: end after the group
        that reaches this pair. reads_anew: where the log cannot go on with the snapshots that were open at `start`, it
        begins without them, and `unread` of the stream is set: have them read again.
        Raises the relay's errors here, not at the first group.
        """
        query = {
            "physical": physical,
            "sources": _joined(sources),
            "to": _to(to),
            "follow": 1 if follow else None,
            "wait_ms": None if follow else wait_ms,
            "max_bytes": bytes_max,
            "output": "frames",
            **self.filters.within(physical).query(),
        }
        if not (reads_anew and isinstance(start, SourceCheckpoint) and start.snapshots):
            asked = {**query, **_start(start)}
            return self._or_past(lambda client: client._stream(physical, {**asked, **client.asks}))  # noqa: SLF001 - one of its own
        bare = replace(start, snapshots={}, log=start.log if start.seq is not None else None)

        def stream_again(endpoint: Endpoint) -> FrameStream:
            try:
                return self._stream_at(endpoint, physical, {**query, **_start(start)})
            except PositionPurged as error:
                if error.bootstrap is not None:
                    raise
                return self._stream_at(endpoint, physical, {**query, **_start(bare)}, error)

        return self._peers.ask(stream_again)

    def _stream(self, physical: str, query: Mapping[str, Any]) -> FrameStream:
        return self._peers.ask(lambda endpoint: self._stream_at(endpoint, physical, query))

    def _stream_at(
        self, endpoint: Endpoint, physical: str, query: Mapping[str, Any], unread: PositionPurged | None = None
    ) -> FrameStream:
        given = {name: value for name, value in query.items() if value is not None}
        wait_ms = int(given.get("wait_ms", 0))
        body = _whole(lambda: Body(endpoint, self._sockets, "/stream", given, accept=ACCEPTED, wait_ms=wait_ms))
        return FrameStream(
            body,
            f"{endpoint.name}, {physical}",
            physical,
            unread=unread,
            fell_silent=lambda error: self._peers.leave(endpoint, error),
        )


def capture_otherwise(one: str | None, other: str | None) -> bool:
    """Whether two relays are known to choose other tables or columns."""
    return None not in (one, other) and one != other


def otherwise(one: str, other: str) -> str:
    """What is said of two such relays."""
    return (
        f"the {one} captures other tables or columns than the {other}, and whoever goes from one to the other would "
        f"miss changes in silence. Give both the same `tables`, `exclude` and `columns`, or follow tables by full names"
    )


def addresses_of(url: str | Sequence[str]) -> list[str]:
    """The addresses, given as a list or in one text."""
    texts = [url] if isinstance(url, str) else list(url)
    return [address.strip() for text in texts for address in text.split(",")]


def _whole(ask: Callable[[], T]) -> T:
    """An answer that is cut off is none; a question can be asked again."""
    try:
        return ask()
    except StreamCut as error:
        raise ServiceUnavailable(str(error)) from error


def _joined(sources: Iterable[str | int] | None) -> str | None:
    return None if sources is None else ",".join(str(source) for source in sources)


def _to(to: Pair | None) -> str | None:
    return None if to is None else f"{to[0]}:{to[1]}"


def _start(start: Start | None) -> dict[str, str]:
    if start is None:
        return {}
    if isinstance(start, SourceCheckpoint):
        return {"from": json.dumps(start.to_json(), separators=(",", ":"))}
    if isinstance(start, dt.datetime):
        try:
            return {"time": str(max(us_of(start), 0))}
        except ValueError as error:
            raise InputError(f"start: {error}") from None
    return {"start": start}


def _registered(version: Mapping[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(
        str(version["name"]),
        int(version["id"]),
        int(version["version"]),
        int(version["fingerprint"], 16),
        bool(version["current"]),
        TableSchema.from_json(version["table"]),
        str(version["schema"]),
    )
