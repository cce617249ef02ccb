"""What a query reads: one physical source, which of its tables, and, for the shape `typed`, in which schema."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from databus.core import ConfigError, Pair, UnknownSource, is_pattern, short_name
from databus.link import LookBack, RelayClient, SourceInfo, any_of, is_called, other_log
from databus.schema import TableSchema
from databus.spark._options import DatabusOptions


def connect(options: DatabusOptions) -> RelayClient:
    """A client of the relay, with what its files hold, or the environment of this process."""
    client = RelayClient(options.relay, access=options.access).filtered(options.filter)
    if options.look_back == "none":
        return client
    every = options.shape == "typed" or options.look_back == "all"  # changes of a schema are looked for before any row
    how = {"every": every, "first_images": options.look_back == "images"}
    return client.looking_back(LookBack(by_table=options.shape == "ranges", **how))


@dataclass(frozen=True, slots=True)
class ServedTable:
    """The table of a typed query."""

    schema: TableSchema
    known: frozenset[int]
    """Fingerprints of all its schemas when the query was loaded."""
    settled: Pair = (0, 0)
    """An end of the log that was seen after `schema` was: no control above it brought that schema."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a query reads, as it was found when the query was loaded."""

    physical: str
    sources: tuple[str, ...] | None
    """Names or ids to ask the relay for; None for all."""
    name: str
    """How errors call it."""
    published: Pair
    """The end of the log then; controls up to it are history."""
    table: ServedTable | None = None
    """With the shape `typed`."""
    log: str = ""
    """Which one says so; it alone numbers the table of a typed query like this."""

    def may_hold(self, table: str) -> bool:
        """Whether `db.table` is among what is read; where only the relay can tell, it may be."""
        if self.table is not None:
            return f"{self.physical}/{table}" == self.name
        return any_of(self.sources, self.physical)(table)


def resolve(client: RelayClient, options: DatabusOptions) -> Target:
    """Ask the relay what the options mean. Raises `UnknownSource`, or `ConfigError` where they leave it open."""
    served = _served(client, options)
    if options.shape != "typed":
        physical = options.physical or _only_physical(served, options)
        if client.is_of_several:
            is_by_pattern = not options.names or any(map(is_pattern, options.names))
            client.check_peers([physical], [physical] if is_by_pattern else ())
        return Target(physical, options.names or None, physical, client.head(physical).published.pair)
    source = _one(served, options.names[0])
    head = client.head(source.physical)  # before the schema: what comes after is seen as a change
    source = _named(_served(client, options), source.name)  # its number in this log, which may be new
    versions = client.register([source.id])
    if options.schema_fingerprint is None:
        chosen = [version.table for version in versions if version.is_current]
    else:
        chosen = [version.table for version in versions if f"{version.fingerprint:016x}" == options.schema_fingerprint]
    if not chosen:
        raise UnknownSource(
            f"{source.name}: the relay has no schema {options.schema_fingerprint or 'in force'}; it has "
            f"{', '.join(f'{version.fingerprint:016x}' for version in versions) or 'none'}"
        )
    settled = client.head(source.physical)
    if settled.log != head.log:
        raise other_log(source.physical, head.log, settled.log)
    table = ServedTable(chosen[0], frozenset(version.fingerprint for version in versions), settled.published.pair)
    return Target(source.physical, (str(source.id),), source.name, head.published.pair, table, head.log)


def _served(client: RelayClient, options: DatabusOptions) -> list[SourceInfo]:
    return [source for source in client.sources() if options.physical in (None, source.physical)]


def matches(source: SourceInfo, name: str) -> bool:
    """Whether a name, as written in the option `sources`, means this source."""
    if name.isdigit():
        return source.id == int(name)
    return is_called(name, source.physical, source.table)


def _short(source: SourceInfo) -> str:
    return short_name(source.table)


def _one(served: Sequence[SourceInfo], name: str) -> SourceInfo:
    matching = [source for source in served if matches(source, name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        choices = " or ".join(sorted(table.name for table in matching))
        raise ConfigError(f'option "sources": {name!r} is not unique; it may be {choices}')
    names = [source.name for source in served]
    near = difflib.get_close_matches(name, [*names, *(source.table for source in served), *map(_short, served)], 1)
    hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(names) or 'none'}"
    raise UnknownSource(f'option "sources": no table called {name!r}; {hint}')


def _named(served: Sequence[SourceInfo], name: str) -> SourceInfo:
    source = next((source for source in served if source.name == name), None)
    if source is None:
        raise UnknownSource(f'option "sources": {name!r} is not captured any more')
    return source


def _only_physical(served: Sequence[SourceInfo], options: DatabusOptions) -> str:
    chosen = [source for source in served if not options.names or any(matches(source, name) for name in options.names)]
    physicals = sorted({table.physical for table in chosen})
    if len(physicals) == 1:
        return physicals[0]
    if physicals:
        raise ConfigError(f'option "physical": missing; one query reads one of {", ".join(physicals)}')
    raise UnknownSource(
        f'option "sources": nothing at {options.relay} is called {options.sources or "anything"!r}; there are '
        f"{', '.join(sorted(source.name for source in served)) or 'none'}"
    )
