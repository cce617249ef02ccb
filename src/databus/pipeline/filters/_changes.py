"""Filters over whole tables that choose among changes: `sample`, `dedupe`, `tombstones` and `outbox`."""

from functools import cached_property
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from databus.flow import Dedupe, OutboxMessages, SampleOfKeys, Tombstones
from databus.pipeline.filters._tablewide import PlainFilter, Texts
from databus.plugins import FilterConfig, Names, TablesFilter, TablesFilterConfig


class SampleConfig(TablesFilterConfig):
    """A fraction of the rows of any number of tables, always the same ones: the key of a row decides."""

    type: Literal["sample"] = "sample"
    fraction: float = Field(gt=0, le=1, description="The fraction of keys that passes.", examples=[0.01])
    by: Texts = Field(
        default_factory=list,
        description="Columns that decide instead of the key. Rows of several tables with equal values in them pass "
        "together, or do not.",
        examples=[["customer_id"]],
    )


class SampleFilter(PlainFilter):
    """See `SampleConfig`."""

    config_model: ClassVar[type[FilterConfig]] = SampleConfig
    step = SampleOfKeys


class DedupeConfig(TablesFilterConfig):
    """Drops updates that change none of the chosen columns. Inserts, deletes and changed keys always pass."""

    type: Literal["dedupe"] = "dedupe"
    columns: Texts | None = Field(
        None,
        min_length=1,
        description="The columns that make an update pass; all by default.",
        examples=[["status", "total_cents"]],
    )
    ignore: Texts | None = Field(
        None, min_length=1, description="Or the columns that do not.", examples=[["updated_at", "last_seen"]]
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.columns is not None and self.ignore is not None:
            raise ValueError("give `columns` or `ignore`, not both")
        return self


class DedupeFilter(TablesFilter):
    """See `DedupeConfig`."""

    config_model: ClassVar[type[FilterConfig]] = DedupeConfig
    config: DedupeConfig

    @cached_property
    def in_tasks(self) -> Dedupe:
        """See `TablesFilter.in_tasks`."""
        return self._of_options(Dedupe, ignore=tuple(self.config.ignore or ()))


class TombstonesConfig(TablesFilterConfig):
    """Deletes are dropped, or become rows that are marked as deleted."""

    type: Literal["tombstones"] = "tombstones"
    deletes: Literal["mark", "drop"] = Field(
        description="`mark`: the row stays, with its last values, and a column says that it was deleted. `drop`: no "
        "delete passes.",
    )
    column: str = Field("__deleted", min_length=1, description="With `mark`: the column, true in deleted rows.")
    time_column: str | None = Field(
        None, min_length=1, description="With `mark`: one more column, with the commit time of the delete.",
        examples=["__deleted_at"],
    )  # fmt: skip
    truncate: Literal["stop", "ignore", "pass"] = Field(
        "stop",
        description="What happens when a table is truncated or dropped, since that names no rows: the output stops; or "
        "its rows stay as they are; or the output does as without this filter.",
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.deletes == "drop" and self.model_fields_set & {"column", "time_column"}:
            raise ValueError("`column` and `time_column` go with `deletes: mark`")
        if self.time_column is not None and self.time_column.lower() == self.column.lower():
            raise ValueError("`column` and `time_column` must be different columns")
        return self


class TombstonesFilter(TablesFilter):
    """See `TombstonesConfig`."""

    config_model: ClassVar[type[FilterConfig]] = TombstonesConfig
    config: TombstonesConfig

    @cached_property
    def in_tasks(self) -> Tombstones:
        """See `TablesFilter.in_tasks`."""
        config = self.config
        mark = config.column if config.deletes == "mark" else None
        return self._of_options(Tombstones, mark=mark, at=config.time_column)


class OutboxConfig(TablesFilterConfig):
    """Messages that an application writes into a table of their own: each inserted row is a message.

    The result has the columns `id`, `topic`, `key` and `payload`, with the key `key`. Updates and deletes of the
    outbox's rows never pass.
    """

    type: Literal["outbox"] = "outbox"
    tables: Names = Field(
        description="The outboxes, as `physical/db.table`, `db.table` or `table`; `*` stands for any run of "
        "characters. Others pass as they are.",
        examples=[["main.outbox"]],
    )
    id: str = Field(
        "id", min_length=1, description="Column by which a receiver recognises a message that it already has."
    )
    route: str = Field("aggregatetype", min_length=1, description="Column of text that decides the topic of a message.")
    key: str = Field("aggregateid", min_length=1, description="Column of the key; one key's messages stay in order.")
    payload: str = Field("payload", min_length=1, description="Column of the message itself.")
    topic: str = Field(
        "outbox.event.{route}",
        min_length=1,
        description="The topic; `{route}` stands for the value of the column that `route` names.",
    )
    keep: Texts = Field(
        default_factory=list, description="More columns of the result, by their names.", examples=[["type"]]
    )

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        if {"{", "}"} & set(value.replace("{route}", "")):
            raise ValueError("only {route} can be in braces; it stands for a row's value")
        return value


class OutboxFilter(PlainFilter):
    """See `OutboxConfig`."""

    config_model: ClassVar[type[FilterConfig]] = OutboxConfig
    config: OutboxConfig
    step = OutboxMessages

    def option_of(self, name: str) -> str:
        """See `TablesFilter.option_of`."""
        options = ("id", "route", "key", "payload")
        return next((option for option in options if getattr(self.config, option) == name), "keep")
