"""What every node of a pipeline's file has, by kind."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from databus.flow import KeyChoice
from databus.sources import SourceName


class NodeConfig(BaseModel):
    """What every node of the graph has."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    type: str = Field(description="Kind of node.")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str]), Field(min_length=1)]
"""One or more names; one may stand without brackets."""


KeyColumns = Annotated[
    list[str] | dict[SourceName, list[str]] | None,
    Field(
        description="Columns that identify a row where the source names none: for all tables, or by `db.table`.",
        examples=[["id"], {"main.log": ["host", "at"]}],
    ),
]
"""The option `key` of outputs that tell rows apart by it."""


class InputConfig(NodeConfig):
    """What every input has."""


class FilterConfig(NodeConfig):
    """What every filter has."""

    from_: Names = Field(
        alias="from",
        description="Names of the inputs and filters before it; `name.branch` for one branch of a route. A table has "
        "one way into an output.",
        examples=["shop", ["shop", "split.large"]],
    )


class TablesFilterConfig(FilterConfig):
    """What every filter over whole tables has."""

    tables: Names = Field(
        default_factory=lambda: ["*"],
        description="Tables that it is about, as `physical/db.table`, `db.table` or `table`; `*` stands for any run of "
        "characters. Others pass as they are.",
        examples=[["*"], ["main.orders", "main.*_archive"]],
    )
    missing: Literal["stop", "skip"] = Field(
        "stop",
        description="What happens to a table that has not all the columns that are named here: the output stops and "
        "says so, or what is not there is left alone (of `where`: all rows of the table pass).",
    )


class OutputConfig(NodeConfig):
    """What every output has, and what follows from its options alone, of which nobody has to ask the output."""

    catch_up_default: ClassVar[Literal["together", "apart"]] = "apart"
    takes_stores: ClassVar[bool] = False
    """Whether its `path` may be a URI in an object store."""

    from_: Names = Field(
        alias="from",
        description="Names of the inputs and filters before it; `name.branch` for one branch of a route. A table has "
        "one way into an output.",
        examples=["shop", ["shop", "split.large"]],
    )
    lane: str | None = Field(
        None,
        description="Outputs of the same lane share one query, and wait for each other. What they say of the query "
        "(`trigger_ms`, `max_rows_per_trigger`, `max_bytes_per_trigger`, `on_failure`) must be the same; it is enough "
        "that one says it.",
    )
    trigger_ms: int | None = Field(
        None,
        ge=0,
        le=3_600_000,
        description="Least time between the starts of two of its micro-batches. Default: `run.trigger_ms`.",
    )
    rest: int = Field(
        0,
        ge=0,
        le=1_000,
        description="After each of its micro-batches its query rests for so many times as long as that took: with 9, "
        "a tenth of the time is spent in micro-batches at most. Of a lane, the longest.",
    )
    max_rows_per_trigger: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Most rows in one of its micro-batches. Default: as its input says."
    )
    max_bytes_per_trigger: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="Most bytes of frames in one of its micro-batches. Default: as its input says.",
    )
    on_failure: Literal["stop", "retry", "halt"] = Field(
        "stop",
        description="What follows an error that does not pass by itself, such as a target that somebody has removed: "
        "`stop`, this output stays down and the others go on; `retry`, it is tried again for ever, with waits that "
        "grow up to `run.retry_ms_max`; `halt`, the whole pipeline ends. What passes by itself, such as a target that "
        "is away, is always tried again. Tables that the output refuses, such as one without a key under a mirror, are "
        "left out and shown as refused, while the others go on; with `halt` they end the pipeline, too.",
    )
    on_change: Literal["stop", "continue", "rebuild"] = Field(
        "stop",
        description="What to do with a table whose rows were written before its filters, or what else decides its rows "
        "here, were changed: `stop`; `continue`, which keeps them and has only later changes go the new way; or "
        "`rebuild`, which removes them and has the table read anew, once its filters and this output are known to fit "
        "the table, and its source has taken the request. A snapshot goes to all outputs of the source: if a "
        "table is read anew for one, a history beside it has those rows again, marked `_snapshot`, and a mirror that "
        "continues holds only rows of the new way then.",
    )

    guard: bool = Field(
        False,
        description="Have the relay keep what this output has not written, beyond the retention of its log: up to the "
        "relay's `groups.guard_bytes_max`, and never against its `free_bytes_min`. It begins with the first batch.",
    )
    catch_up: Literal["together", "apart"] | None = Field(
        None,
        description="What to do where some tables are behind the others, as tables are that were left out for a while: "
        "`together`, all go back to where the last of them stands, and what the target has already is left out, so "
        "that all changes come in one order; or `apart`, these tables catch up beside the others, whose changes do "
        "not wait, so that older changes of one table may come after newer ones of another. Default: `together` for "
        "outputs whose readers see one order (`http`, `stream`, `kafka`), `apart` for others.",
    )

    @property
    def catches_up_together(self) -> bool:
        """What `catch_up` says, or its default."""
        return (self.catch_up or self.catch_up_default) == "together"

    @property
    def is_refilled(self) -> bool:
        """Whether a snapshot of a table replaces all that the target holds of it, so that rows from before may be left
        out.
        """
        return False

    @property
    def may_lack(self) -> bool:
        """Whether the output goes on where its target lacks rows that it had."""
        return getattr(self, "on_gap", "stop") == "continue"

    @property
    def key_choice(self) -> KeyChoice:
        """The columns by which the output tells rows apart, where its options name some."""
        return KeyChoice()

    def form_of(self, source: str) -> Mapping[str, Any]:
        """What of these options decides the rows and columns that are kept of a source (`db.table`), as JSON."""
        del source
        return {}

    @property
    def counts_transactions(self) -> bool:
        """Whether it counts the changes of each transaction, so that all of a source's tables have to come to it in one
        query.
        """
        return False

    @property
    def transactions_go_to(self) -> str:
        """The name of what it writes of transactions, where that is one for several outputs of the same options."""
        return ""

    @property
    def compacts_in(self) -> Sequence[str]:
        """Names of targets, with `{physical}`, `{db}` and `{table}`, in which a row takes the place of any older one of
        the same key, whichever table that is of; none where rows are told apart by their tables, too.
        """
        return ()

    @property
    def ends_transactions(self) -> bool:
        """Whether tasks write something where a transaction ends of which a part came before, though no row of these
        tables comes with the end.
        """
        return self.counts_transactions

    @property
    def takes_messages_alone(self) -> bool:
        """Whether it can take no rows but messages, as sources have them that say `has_messages`."""
        return False
