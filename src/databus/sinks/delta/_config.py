"""Options of the output `delta`."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from databus.flow import KeyChoice
from databus.plugins import KeyColumns, OutputConfig
from databus.sinks.delta._table import Upkeep

_KEEP: Final = Upkeep()


class DeltaConfig(OutputConfig):
    """Delta tables, one for each source: a mirror of the rows that it has now, or the history of all changes."""

    takes_stores: ClassVar[bool] = True
    type: Literal["delta"] = "delta"
    mode: Literal["mirror", "history"] = Field(
        description="`mirror`: the rows that the source has now. `history`: every change, appended."
    )
    path: str = Field(
        description="Folder of the Delta tables, here or in an object store. `{physical}`, `{db}` and `{table}` stand "
        "for the source's names; without any of them, `/{table}` is added. A table's folder is its "
        "output's alone.",
        examples=["lake/mirror", "s3://lake/{physical}/{db}.{table}"],
    )
    controls: Literal["rows", "all"] = Field(
        "rows",
        description="Which controls a history has as rows: `rows`: `truncate`, `drop` and `gap`, without which its "
        "rows would say something wrong. `all`: every control; column `_control` has its JSON with the table's "
        "definition.",
    )
    retype: Literal["stop", "new_column"] = Field(
        "stop",
        description="What a history does where a column gets a type that its values do not fit into: `stop`, or go on "
        "with a `new_column`, `NAME__TYPE`; the old one is null from then on. With it nothing is rewritten beyond "
        "`rewrite_bytes_max` either.",
    )
    engine: Literal["deltalake"] = Field("deltalake", description="What writes the tables.")
    merge: bool = Field(
        False,
        description="Whether several sources may share a table, such as the shards of a database, or tables with a "
        "name for each year. Column `_source` says whose each row is (`physical/db.table`), and the table is "
        "partitioned by it; a row is told from others by it and by its key, so keys may repeat between sources.",
    )
    key: KeyColumns = None
    on_gap: Literal["stop", "continue"] = Field(
        "stop",
        description="What a mirror does where changes are missing and no snapshot is said to follow: stop, or go on, "
        "because you have asked for one or accept what it shows.",
    )
    merge_rows_max: int = Field(
        1_000_000, ge=1, le=100_000_000, description="Most rows of one merge; larger batches are several commits."
    )
    rewrite_bytes_max: int = Field(
        _KEEP.rewrite_bytes_max, ge=0, description="Largest table that a change of its schema may rewrite, in bytes."
    )
    file_bytes_max: int = Field(
        _KEEP.file_bytes_max,
        ge=1 << 20,
        le=1 << 34,
        description="Size at which a file is full, in bytes. A mirror rewrites every file that a change falls into.",
    )
    group_rows_max: int = Field(
        _KEEP.group_rows_max,
        ge=1_000,
        le=_KEEP.group_rows_max,
        description="Most rows of a row group of a mirror's files. With fewer than usual, rows are in the order of the "
        "key inside of every file, so that readers can leave out row groups.",
    )
    compact_every_commits: int = Field(
        _KEEP.compact_every_commits,
        ge=1,
        le=1_000_000,
        description="After how many commits a history's small files are joined, and files that no version needs are "
        "removed. A mirror's small files are joined as changes come.",
    )
    checkpoint_every_commits: int = Field(
        _KEEP.checkpoint_every_commits, ge=1, le=10_000, description="Every how many commits Delta sums up its log."
    )
    vacuum_hours: int = Field(
        _KEEP.vacuum_hours,
        ge=1,
        le=87_600,
        description="How long files of older versions are kept, in hours; longer than any batch takes to be written.",
    )
    pins: str | None = Field(
        None,
        description="Folder of a bootstrap service that serves this output's tables. Of a mirror, files of older "
        "versions that a state there names are kept, however old they are. Of a history, `databus rebuild` removes "
        "nothing: it is the service's log store, and what it holds may have left the relay's log.",
        examples=["lake/bootstrap"],
    )
    log_hours: int = Field(
        _KEEP.log_hours, ge=1, le=87_600, description="How long entries of Delta's log are kept, in hours."
    )

    @property
    def is_refilled(self) -> bool:
        """See `OutputConfig.is_refilled`."""
        return self.mode == "mirror"

    @property
    def has_all_controls(self) -> bool:
        """Whether every control is a row."""
        return self.mode == "history" and self.controls == "all"

    @property
    def key_choice(self) -> KeyChoice:
        """See `OutputConfig.key_choice`: a history has no use for one."""
        return KeyChoice(() if self.mode == "history" else self.key or ())

    def form_of(self, source: str) -> Mapping[str, Any]:
        """See `OutputConfig.form_of`."""
        key = self.key.get(source) if isinstance(self.key, dict) else self.key
        controls = {"controls": "all"} if self.has_all_controls else {}
        return {"mode": self.mode, "merge": self.merge, "key": key, **controls}

    def upkeep(self) -> Upkeep:
        """The options that concern a table's files."""
        return Upkeep(
            compact_every_commits=self.compact_every_commits,
            vacuum_hours=self.vacuum_hours,
            log_hours=self.log_hours,
            checkpoint_every_commits=self.checkpoint_every_commits,
            file_bytes_max=self.file_bytes_max,
            rewrite_bytes_max=self.rewrite_bytes_max,
            group_rows_max=self.group_rows_max,
        )
