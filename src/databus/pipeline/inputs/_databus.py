"""Input `databus`: tables that a relay captures, the pipeline's own or one that runs elsewhere."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from databus.core import (
    SEQ_DONE,
    Checkpoint,
    ConfigError,
    MalformedRequest,
    Pair,
    PositionPurged,
    SourceCheckpoint,
    UnknownColumn,
    UnknownSource,
    is_pattern,
    split_physical,
    time_us,
)
from databus.filters import FrameFilter, StreamFilter, TableChoice, matches, name_if_there, names_for_relay, nearest
from databus.flow import Decode, RangeDecoder, RelayTables, UnitedDecoder
from databus.link import LookBack
from databus.places import Choice, chosen_by, patterns_in
from databus.plugins import Input, InputConfig, RunContext, Shape, TableRanges
from databus.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_STREAMS_MAX: Final = 64  # over the runs and reloads of one process
_RANGES_MAX: Final = 256
_RANGE_BYTES_MIN: Final = 4 << 20  # some 40 ms of work, several times the cost of starting a task

_Patterns = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]),
]


def _checked(value: Any, info: ValidationInfo) -> Any:
    """One parameter of a filter, unchanged. Raises `ValueError`."""
    try:
        StreamFilter.parse(**{str(info.field_name): value})
    except MalformedRequest as error:
        raise ValueError(str(error).removeprefix(f"{info.field_name}: ")) from None
    return value


class TableFilterConfig(BaseModel):
    """Rows and columns of some tables."""

    model_config = ConfigDict(extra="forbid")

    where: str | None = Field(None, description="Only rows for which this condition holds.")
    columns: _Patterns | None = Field(None, description="Only these columns, and those of the key.")

    _are_right = field_validator("where", "columns")(_checked)


class DatabusInputConfig(InputConfig):
    """Tables of a relay. An output reads all its tables of a physical source by one query."""

    type: Literal["databus"] = "databus"
    tables: _Patterns = Field(
        default_factory=lambda: ["*"],
        min_length=1,
        description="Tables, as `physical/db.table`, `db.table` or `table`; `*` stands for any run of characters; "
        "text in backquotes is taken as it is.",
        examples=[["shop/main.*"], ["orders", "customers"], ["shop/`shop.example`.*"]],
    )
    exclude: _Patterns = Field(
        default_factory=list, description="Tables to exclude from these, in the same form.", examples=[["main.audit"]]
    )
    starting_version: int | Literal["beginning", "earliest", "latest"] | None = Field(
        None,
        description="Where a new output begins: an SCN, inclusive, `beginning` (an error if the relay no longer has "
        "it), `earliest` (the oldest that it has) or `latest`. Default: `beginning`, or, if the relay no longer has "
        "it, a snapshot of the tables and all later changes. A table that is chosen later begins there too: `latest` "
        "is then the place of the others, and what the relay no longer has is read by a snapshot.",
    )
    starting_timestamp: str | None = Field(
        None,
        description="Or a commit time: ISO 8601 (UTC without a zone), or microseconds since 1970.",
        examples=["2026-11-21T12:00:00Z"],
    )
    max_rows_per_trigger: int | None = Field(None, ge=1, le=2**31 - 1, description="Most rows in a micro-batch.")
    max_bytes_per_trigger: int = Field(
        64 << 20,
        ge=1,
        le=2**31 - 1,
        description="Most bytes of frames in a micro-batch, to the precision of a group (4 MiB). An output in the "
        "driver keeps a batch in memory.",
    )
    partitions: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="How many ranges, and so tasks, a micro-batch has. Default: as many as the master runs at the same "
        "time when a query starts (for a local master half of its cores, since the relay and the driver run there "
        "too), at most 256, and fewer if a range would be smaller than 4 MiB.",
    )
    wait_ms: int = Field(
        1_000,
        ge=0,
        le=10_000,
        description="How long the relay waits for rows before it answers that there are none.",
    )
    retry_ms: int = Field(
        30_000, ge=0, le=600_000, description="How long a query keeps asking a relay that does not answer."
    )

    look_back: bool | Literal["all"] = Field(
        True,
        description="Whether changes that have left the relay's log come from its bootstrap service, if it has one: "
        "for an output that is new, is rebuilt, gets a table, or was away for too long. Else such tables are read by "
        "a snapshot, or the output stops. With `all`, every output gets every change, as histories do; without it, "
        "others get the last state of the tables.",
    )

    where: str | None = Field(
        None,
        description="Only rows for which this condition holds, of each of these tables; the relay drops the "
        "others. See docs/filters.md.",
        examples=["total >= 100 AND region = 'CH'"],
    )
    columns: _Patterns | None = Field(
        None, description="Only these columns, and those of the key.", examples=[["id", "total"]]
    )
    filters: dict[str, TableFilterConfig] = Field(
        default_factory=dict,
        description="Both by table or pattern, if tables differ. `where` and `columns` apply to these tables too.",
        examples=[{"shop/main.orders": {"where": "total >= 100", "columns": ["id", "total"]}}],
    )
    partition: str | None = Field(
        None, description="`i/n`: only rows whose key is in bucket i of n, counted from 0.", examples=["3/8"]
    )
    on_filter_change: Literal["snapshot", "stop"] = Field(
        "snapshot",
        description="What happens if a change of a table's schema changes a column that its condition reads, or adds "
        "one to `columns` by a new name, so that earlier rows were chosen or cut by other values: the table is read "
        "again, or the outputs stop there.",
    )

    _are_right = field_validator("where", "columns", "partition")(_checked)

    @model_validator(mode="after")
    def _is_whole_filter(self) -> Self:
        try:
            self.filter.query()
        except (ConfigError, MalformedRequest) as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def filter(self) -> StreamFilter:
        """The filter that the relay applies."""
        by_table = {name: table_filter.model_dump() for name, table_filter in self.filters.items()}
        return StreamFilter.parse(self.where, self.columns, by_table, self.partition)

    @field_validator("starting_timestamp")
    @classmethod
    def _is_time(cls, value: str) -> str:
        time_us(value)
        return value

    @model_validator(mode="after")
    def _begins_once(self) -> Self:
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise ValueError("starting_version and starting_timestamp both say where to begin; remove one")
        return self


@dataclass
class _Shared:
    """A stream that queries share."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is made, which may take long if the relay does not answer."""
    stream: "DataFrame | None" = None


class DatabusInput(Input):
    """See this module's first lines."""

    config_model: ClassVar[type[InputConfig]] = DatabusInputConfig
    emits: ClassVar[Shape] = Shape.TABLES
    needs_relay: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    config: DatabusInputConfig

    def __init__(self, config: DatabusInputConfig) -> None:
        super().__init__(config)
        self._streams: dict[tuple[object, ...], _Shared] = {}
        self._streams_lock = threading.Lock()
        self._filter = config.filter

    def choice(self) -> TableChoice:
        """The tables that match `tables` and not `exclude`."""
        return TableChoice(tuple(self.config.tables), tuple(self.config.exclude))

    @property
    def filter(self) -> StreamFilter:
        """The filter that the relay applies."""
        return self._filter

    @property
    def stops_on_filter_change(self) -> bool:
        """See `Input.stops_on_filter_change`."""
        return self.config.on_filter_change == "stop"

    def tables(
        self,
        spark: "SparkSession",
        context: RunContext,
        physical: str,
        patterns: Sequence[str],
        after: Checkpoint | None = None,
        may_lack: Collection[str] = (),
    ) -> "tuple[DataFrame, Decode]":
        """Ranges of the log; Spark counts them, and what writes them reads the log itself."""
        options = {**self._options(spark, context, after), **self._how(context)}
        options |= {"shape": "ranges", "physical": physical}
        sources = self._sources(context, physical, patterns, may_lack)
        if sources is not None:
            options["sources"] = ",".join(sources)
        return self._stream(spark, options), self._decoder(context, physical, sources)

    def _sources(
        self, context: RunContext, physical: str, patterns: Sequence[str], may_lack: Collection[str] = ()
    ) -> tuple[str, ...] | None:
        """The tables to ask a relay for; None for all."""
        exact = [pattern for pattern in patterns if not is_pattern(split_physical(pattern)[1])]
        is_open = not all(name.startswith(f"{physical}/") for name in exact)  # one may be of another source
        names = names_for_relay(patterns, physical, self.tables_of(context) if is_open else (), may_lack)
        return None if not names or f"{physical}/*" in names else tuple(names)

    def _decoder(
        self, context: RunContext, physical: str, sources: tuple[str, ...] | None, names: Sequence[str] | None = None
    ) -> Decode:
        """Decodes ranges. names: full names of the tables, if these are known."""
        del names
        return self.range_decoder(context, physical, sources)

    def range_decoder(self, context: RunContext, physical: str, sources: tuple[str, ...] | None) -> RangeDecoder:
        """Decodes ranges of these tables, filtered as by this input."""
        times = self.config.wait_ms, self.config.retry_ms
        settings = context.relay_url, context.access, physical, sources, *times, self.filter
        return RangeDecoder(*settings, look_back=self._look_back(context))

    def ranges(
        self,
        spark: "SparkSession",
        context: RunContext,
        physical: str,
        tables: Sequence[str],
        after: SourceCheckpoint,
        to: Pair,
    ) -> "tuple[pa.Table, SourceCheckpoint, Decode]":
        """See `Input.ranges`."""
        from databus.spark import ranges_after

        options = {**self._options(spark, context, Checkpoint({physical: after})), "physical": physical}
        sources = _if_there(tables, physical)
        ranges, end = ranges_after({**options, **self._how(context), "sources": ",".join(sources)}, after, to)
        return ranges, end, self._decoder(context, physical, sources, tables)

    def _stream(self, spark: "SparkSession", options: Mapping[str, str]) -> "DataFrame":
        """A stream with these options; queries with the same ones share it.

        To make one, Spark starts two Python processes that import databus. Each query still has its own reader and
        checkpoint.
        """
        key = (spark, *sorted(options.items()))
        with self._streams_lock:
            if key not in self._streams and len(self._streams) >= _STREAMS_MAX:
                self._streams.clear()
            shared = self._streams.setdefault(key, _Shared())
        with shared.lock:
            if shared.stream is None:
                shared.stream = spark.readStream.format("databus").options(**options).load()
            return shared.stream

    def table_ranges(self, spark: "SparkSession", context: RunContext, name: str) -> TableRanges:
        """See `Input.table_ranges`."""
        from databus.spark import TypedRanges

        inexact = "leave_out" if context.is_refilled else "stop"
        options = {**self._options(spark, context, Checkpoint()), "sources": name, "inexact": inexact}
        options["lookBack"] = "all" if self.config.look_back else "none"
        return TypedRanges(spark, options)

    def united(self, parts: Sequence[tuple[Input, Choice]]) -> "DatabusInput | None":
        """One stream for all; each table is filtered as by its own input."""
        own_parts = [(part, choice) for part, choice in parts if isinstance(part, DatabusInput)]
        if len(own_parts) < len(parts):
            return None
        rows = [part.config.max_rows_per_trigger for part, _ in own_parts]
        limits = {
            "max_rows_per_trigger": min((row for row in rows if row is not None), default=None),
            "max_bytes_per_trigger": min(part.config.max_bytes_per_trigger for part, _ in own_parts),
            "look_back": all(part.config.look_back for part, _ in own_parts),
        }
        unfiltered: dict[str, Any] = {"where": None, "columns": None, "filters": {}, "partition": None}
        return _UnitedInput(self.config.model_copy(update={**limits, **unfiltered}), own_parts)

    def schema_of(self, context: RunContext, table: str | None) -> tuple[str, TableSchema]:
        """See `Input.schema_of`."""
        client = context.relay_client()
        names = {source.name: source for source in client.sources()}
        matching = [source for name, source in names.items() if matches(name, [table or "*"])]
        if len(matching) != 1:
            what = "has no" if not matching else "has several called"
            near = nearest(table or "", names)
            hint = f'; did you mean "{near}"?' if near and not matching else ""
            raise UnknownSource(f"the relay at {context.relay} {what} {table}{hint}")
        physical = matching[0].physical
        return physical, self._behind(physical, client.table_of(matching[0].fingerprint))

    def log_of(self, context: RunContext, physical: str) -> str:
        """See `Input.log_of`."""
        return context.relay_client().head(physical).log

    def uuid_of(self, context: RunContext, physical: str) -> str:
        """See `Input.uuid_of`."""
        return context.relay_client().head(physical).uuid

    def beginning(self, context: RunContext, physical: str) -> Checkpoint | None:
        """The position that the options mean now; without any, the log's beginning, or, if that is gone, its end.

        The oldest position of a log would be no better than its end: it is purged next, and the tables are read by
        snapshots in any case.
        """
        version, time = self.config.starting_version, self.config.starting_timestamp
        if isinstance(version, int):
            return None
        client = context.relay_client()
        try:
            start = "beginning" if self.wants_all else version
            at = client.position(physical, start=start, time_us=None if time is None else time_us(time))
        except PositionPurged:
            if not self.wants_all:
                raise
            at = client.position(physical, start="latest")
        return Checkpoint({physical: at})

    def check_position(self, context: RunContext, physical: str, checkpoint: Checkpoint) -> None:
        """See `Input.check_position`."""
        at = checkpoint.sources.get(physical)
        if at is not None:
            context.relay_client().position(physical, start=at)

    def looks_back(self, context: RunContext, physical: str, tables: Collection[str], place: SourceCheckpoint) -> bool:
        """Whether the relay names a bootstrap service that has all of these tables."""
        how = self._look_back(context)
        if how is None:
            return False
        client = context.relay_client().filtered(self.filter)
        try:
            client.position(physical, start=place if place.pair > (0, SEQ_DONE) else "beginning")
        except PositionPurged as error:
            if error.bootstrap is None:
                return False
            try:
                client.bootstrap(error.bootstrap, how).range(physical, place, sources=sorted(tables), rows_max=1)
            except (UnknownSource, PositionPurged):
                return False
            return True
        return False

    @property
    def starting_version(self) -> int:
        """The option, if it is a number."""
        version = self.config.starting_version
        return version if isinstance(version, int) else 0

    @property
    def wants_all(self) -> bool:
        """Whether the options do not say where to begin."""
        return self.config.starting_version is None and self.config.starting_timestamp is None

    def tables_of(self, context: RunContext, physical: str | None = None) -> list[str]:
        """See `Input.tables_of`."""
        client = context.relay_client()
        return [source.name for source in client.sources() if physical in (None, source.physical)]

    def tables_now(self, context: RunContext, physical: str) -> Mapping[str, TableSchema]:
        """See `Input.tables_now`."""
        client = context.relay_client()
        fingerprints = {source.name: source.fingerprint for source in client.sources() if source.physical == physical}
        tables: dict[str, TableSchema] = {}
        for name, fingerprint in fingerprints.items():
            with suppress(MalformedRequest, UnknownColumn):  # it may not be among the chosen; see `check_filter`
                tables[name] = self._behind(physical, client.table_of(fingerprint))
        return tables

    def check_filter(self, context: RunContext, physical: str, selects: Callable[[str], bool]) -> None:
        """See `Input.check_filter`."""
        client = context.relay_client()
        for source in client.sources() if not self.filter.is_nothing else ():
            if source.physical == physical and selects(source.name):
                over = FrameFilter.over(self.filter, physical, client.table_of(source.fingerprint))
                over.check([source.table], is_at_end=True)

    def _behind(self, physical: str, table: TableSchema) -> TableSchema:
        """A present table behind the filter."""
        return FrameFilter.over(self.filter, physical, table).cut_of(table).after

    def past_definitions(self, context: RunContext, name: str) -> Sequence[TableSchema]:
        """See `Input.past_definitions`."""
        return [revision.table for revision in context.relay_client().filtered(self.filter).register([name])]

    def definitions(self, context: RunContext) -> RelayTables:
        """See `Input.definitions`."""
        return RelayTables(context.relay_url, context.access, self.filter)

    def read_anew(self, context: RunContext, physical: str, tables: Sequence[str]) -> None:
        """Ask the relay for snapshots."""
        context.relay_client().request_snapshot(physical, tables)

    def _look_back(self, context: RunContext) -> LookBack | None:
        """How a bootstrap service is asked: histories get every change."""
        every = not context.is_refilled or context.every_change or self.config.look_back == "all"
        return LookBack(True, every, context.chooses_rows and not every) if self.config.look_back else None

    def _how(self, context: RunContext) -> dict[str, str]:
        how = self._look_back(context)
        if how is None:
            return {"lookBack": "none"}
        return {"lookBack": "all" if how.every else "images" if how.first_images else "state"}

    def _options(self, spark: "SparkSession", context: RunContext, after: Checkpoint | None) -> dict[str, str]:
        options = {
            "relay": context.relay_url,
            **self._ranges(spark),
            "maxBytesPerTrigger": str(self.config.max_bytes_per_trigger),
            "waitMs": str(self.config.wait_ms),
            "retryMs": str(self.config.retry_ms),
            **self.filter.query(),
        }
        optional = {
            "maxRowsPerTrigger": self.config.max_rows_per_trigger,
            **({} if context.access is None else context.access.options()),
        }
        if after is None:
            optional["startingVersion"] = self.config.starting_version
            optional["startingTimestamp"] = self.config.starting_timestamp
        else:
            optional["startingCheckpoint"] = after.dumps()
        return {**options, **{name: str(value) for name, value in optional.items() if value is not None}}

    def _ranges(self, spark: "SparkSession") -> dict[str, str]:
        from databus.spark import slots_of

        if self.config.partitions is not None:
            return {"partitions": str(self.config.partitions)}
        slots = min(slots_of(spark), _RANGES_MAX)
        return {"partitions": str(slots), "partitionBytesMin": str(_RANGE_BYTES_MIN if slots > 1 else 0)}


class _UnitedInput(DatabusInput):
    """Several inputs of one relay, read by one query."""

    def __init__(self, config: DatabusInputConfig, parts: Sequence[tuple[DatabusInput, Choice]]) -> None:
        super().__init__(config)
        self._parts = parts

    def _decoder(
        self, context: RunContext, physical: str, sources: tuple[str, ...] | None, names: Sequence[str] | None = None
    ) -> Decode:
        """Each part asks only for its own tables: its filter may not fit others."""
        del sources
        decoders = []
        for part, choice in self._parts:
            patterns = patterns_in(choice)
            asked_for = _if_there([name for name in names or () if chosen_by(choice, name)], physical)
            if names is None:
                known = self.tables_of(context)
                asked_for = tuple(names_for_relay(patterns, physical, known, patterns))
            if asked_for:
                decoders.append((part.range_decoder(context, physical, asked_for), choice))
        return UnitedDecoder(tuple(decoders))


def _if_there(names: Sequence[str], physical: str) -> tuple[str, ...]:
    """Tables to ask a relay for, some of which may have been dropped meanwhile."""
    return tuple(name_if_there(name, physical) for name in names)
