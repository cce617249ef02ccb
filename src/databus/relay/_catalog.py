"""The catalogue: which source a request means, by full name, short name, pattern or id, over all logs of the relay."""

import difflib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from databus.core import (
    Checkpoint,
    MalformedRequest,
    ServiceUnavailable,
    UnknownSource,
    is_pattern,
    name_fits,
    split_physical,
)
from databus.log import Log, SchemaStore, SchemaVersion
from databus.relay._capture import Capture
from databus.relay._grant import ALL, Grant
from databus.schema import TableSchema, avro_schema

_NAMED_MAX: Final = 10  # how many names an error lists


class Selection:
    """Sources of one physical source, by names and patterns that may come to match more while a stream is followed."""

    def __init__(self, physical: str, names: Sequence[str] | None, grant: Grant = ALL) -> None:
        self.physical = physical
        self.names = names
        self.grant = grant
        self._ids: frozenset[int] | None = None
        self._seen: Mapping[str, int] | None = None

    def ids(self, store: SchemaStore) -> frozenset[int] | None:
        """The ids that are selected now; None for all. Cheap while no table is new."""
        if self.names is None and not self.grant.is_limited:
            return None
        known = store.ids()
        if known is not self._seen:
            there = self.grant.visible(store)
            named = (id_ for name in self.names or () for id_ in _matching(self.physical, there, name))
            self._ids = frozenset(there.values() if self.names is None else named)
            self._seen = known
        return self._ids

    def tables(self, store: SchemaStore) -> list[str]:
        """The tables that are selected now, `db.table`."""
        ids = self.ids(store)
        return [name for name, id_ in store.ids().items() if ids is None or id_ in ids]

    def check(self, store: SchemaStore) -> None:
        """Raise `UnknownSource` for a name that matches nothing, `MalformedRequest` for one that matches several."""
        known = self.grant.visible(store)
        for name in self.names or ():
            ids = _matching(self.physical, known, name)
            if is_pattern(name):
                continue
            if not ids:
                raise unknown(name, [store.full_name(table) for table in known])
            if len(ids) > 1:
                several = sorted(store.full_name(table) for table, id_ in known.items() if id_ in ids)
                raise MalformedRequest(f"sources: {name!r} may be {' or '.join(several)}; write the full name")


def _matching(physical: str, known: Mapping[str, int], name: str) -> list[int]:
    """Ids of the tables that `name` means in one physical source."""
    if name.isascii() and name.isdigit():
        return [id_ for id_ in known.values() if id_ == int(name)]
    owner, table = split_physical(name)
    if owner and not fnmatchcase(physical, owner):
        return []
    exact = [id_ for source, id_ in known.items() if source == table]
    return exact or [id_ for source, id_ in known.items() if name_fits(source, table)]


def unknown(name: str, there_are: Iterable[str], what: str = "source") -> UnknownSource:
    """The error for a name that nothing has: the nearest one, or the first few there are."""
    all_names = sorted(there_are)
    near = difflib.get_close_matches(name, all_names, 1)
    if near:
        return UnknownSource(f"no {what} called {name[:200]!r}; did you mean {near[0]!r}?")
    listed = ", ".join(all_names[:_NAMED_MAX]) + (", ..." if len(all_names) > _NAMED_MAX else "")
    return UnknownSource(f"no {what} called {name[:200]!r}; there are {listed or 'none'}")


class Catalog:
    """The physical sources of a relay and their tables, as far as a grant lets see them. file: where they are named."""

    def __init__(self, captures: Mapping[str, Capture], file: Path | None, grant: Grant = ALL) -> None:
        self.captures = captures
        self.file = file
        self.grant = grant

    def within(self, grant: Grant) -> "Catalog":
        """What is there for the holder of a grant."""
        if not grant.is_limited:
            return self
        captures = {name: capture for name, capture in self.captures.items() if grant.sees_physical(name)}
        return Catalog(captures, self.file, grant)

    def physical(self, name: str) -> Capture:
        """The physical source of that name. Raises `UnknownSource`."""
        capture = self.captures.get(name)
        if capture is None:
            raise unknown(name, self.captures, "physical source")
        return capture

    def physicals(self, names: Sequence[str] | None) -> list[Capture]:
        """Those of these names; all without names. Raises `UnknownSource`."""
        return list(self.captures.values()) if names is None else [self.physical(name) for name in names]

    def log_of(self, capture: Capture) -> Log:
        """Its log. Raises `ServiceUnavailable` while it has not been opened."""
        if capture.log is None:
            state = self.describe(capture)
            raise ServiceUnavailable(f"{capture.physical}: its log is not open yet ({state}); ask again")
        return capture.log

    def describe(self, capture: Capture) -> str:
        """What a physical source is doing, as one line."""
        return capture.describe() if self.grant.sees_messages else capture.status.state.name

    def logs(self) -> Iterator[Log]:
        """The logs that are open."""
        return (capture.log for capture in self.captures.values() if capture.log is not None)

    def choose(
        self, physical: str | None, sources: Sequence[str] | None, checkpoint: Checkpoint | None = None
    ) -> Capture:
        """The one physical source that a request means.

        By its name, else by the sources' names, else by a checkpoint that holds only one, else because there is only
        one. Raises `UnknownSource`, or `MalformedRequest` naming the candidates.
        """
        if physical is not None:
            return self.physical(physical)
        candidates = list(self.captures.values())
        if sources is not None:
            candidates = self._holding(sources)
        if len(candidates) > 1 and checkpoint is not None:
            candidates = [capture for capture in candidates if capture.physical in checkpoint.sources] or candidates
        if len(candidates) > 1:
            names = ", ".join(sorted(capture.physical for capture in candidates))
            raise MalformedRequest(f"physical: say which physical source is meant; it may be {names}")
        if not candidates:
            raise UnknownSource("there is no physical source that this token may read")
        return candidates[0]

    def _holding(self, sources: Sequence[str]) -> list[Capture]:
        """The physical sources in which each of these names means something."""
        candidates = list(self.captures.values())
        for name in sources:
            owner, _ = split_physical(name)
            if owner:
                left = [capture for capture in candidates if fnmatchcase(capture.physical, owner)]
                if not left and not any(fnmatchcase(physical, owner) for physical in self.captures):
                    raise unknown(owner, self.captures, "physical source")
            elif is_pattern(name):
                left = candidates
            else:
                left = [
                    capture
                    for capture in candidates
                    if capture.log is None or _matching(capture.physical, self.grant.visible(capture.log.schemas), name)
                ]
            if not left:
                if len(self.captures) > 1 and len(candidates) < len(self.captures):
                    raise MalformedRequest(
                        f"sources: {', '.join(sources)[:200]} are not of one physical source; ask for each by itself"
                    )
                raise unknown(name, self.all_names())
            candidates = left
        return candidates

    def all_names(self) -> list[str]:
        """The full names of all sources."""
        return [log.schemas.full_name(name) for log in self.logs() for name in self.grant.visible(log.schemas)]

    def sources(
        self, seen: Callable[[Log, TableSchema], Collection[TableSchema]], *, detailed: bool
    ) -> list[dict[str, Any]]:
        """What `/sources` answers. seen: what becomes of a definition for who asks."""
        return [
            source_json(log.schemas, replace(version, table=table), detailed=detailed)
            for log in self.logs()
            for version in log.schemas.current().values()
            if self.grant.sees(log.physical, version.table.source)
            for table in seen(log, version.table)
        ]

    def physical_sources(self, sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What `/physicalSources` answers. sources: those of `/sources?v=2`."""
        return [
            {
                "name": name,
                "type": capture.config.type,
                "uuid": None if capture.log is None else capture.log.identity.uuid,
                "log": None if capture.log is None else capture.log.uuid,
                "sources": [
                    {"id": source["id"], "name": source["name"]} for source in sources if source["physical"] == name
                ],
            }
            for name, capture in self.captures.items()
        ]

    def definitions(
        self,
        physical: str | None,
        names: Sequence[str] | None,
        fingerprint: int | None,
        behind: Callable[[Log, TableSchema], Collection[TableSchema]] = lambda _, table: (table,),
    ) -> list[dict[str, Any]]:
        """What `/register` answers: all versions of the sources named, or the one of a fingerprint.

        behind: what becomes of a definition behind the filters that are meant.
        """
        captures = self.captures.values() if physical is None else [self.physical(physical)]
        definitions: list[dict[str, Any]] = []
        matched: set[str] = set()
        for capture in captures:
            if capture.log is None:
                continue
            store = capture.log.schemas
            current = {version.table.fingerprint for version in store.current().values()}
            there = self.grant.visible(store)
            by_name = {name: set(_matching(capture.physical, there, name)) for name in names or ()}
            matched |= {name for name, ids in by_name.items() if ids}
            wanted = set().union(*by_name.values())
            for version in store.all():
                if version.table.source not in there or (names is not None and version.source_id not in wanted):
                    continue
                is_current = version.table.fingerprint in current
                definitions += [
                    definition_json(store, replace(version, table=table), is_current=is_current)
                    for table in behind(capture.log, version.table)
                    if fingerprint in (None, table.fingerprint)
                ]
        if fingerprint is not None and not definitions:
            raise UnknownSource(f"fingerprint: no definition {fingerprint:016x} in any log of this relay")
        for name in names or ():
            if name not in matched and not is_pattern(name):
                raise unknown(name, self.all_names())
        return definitions


def source_json(store: SchemaStore, version: SchemaVersion, *, detailed: bool) -> dict[str, Any]:
    """A source as `/sources` answers it."""
    value: dict[str, Any] = {"name": store.full_name(version.table.source), "id": version.source_id}
    if detailed:
        value |= {
            "physical": store.physical,
            "table": version.table.source,
            "version": version.version,
            "fingerprint": f"{version.table.fingerprint:016x}",
            "key": list(version.table.key),
        }
    return value


def definition_json(store: SchemaStore, version: SchemaVersion, *, is_current: bool) -> dict[str, Any]:
    """A definition as `/register` answers it."""
    return {
        **source_json(store, version, detailed=True),
        "schema": json.dumps(avro_schema(version.table), separators=(",", ":")),
        "current": is_current,
        "table": version.table.to_json(),
    }
