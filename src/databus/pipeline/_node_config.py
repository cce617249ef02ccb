"""What every node of a pipeline's file has, by kind."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class NodeConfig(BaseModel):
    """What every node of the graph has."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    type: str = Field(description="Kind of node.")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str]), Field(min_length=1)]
"""One or more names; one may stand without brackets."""


class InputConfig(NodeConfig):
    """What every input has."""


class FilterConfig(NodeConfig):
    """What every filter has."""

    from_: Names = Field(
        alias="from",
        description="Names of the inputs and filters before it; `name.branch` for one branch of a route.",
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
    """What every output has."""

    from_: Names = Field(
        alias="from",
        description="Names of the inputs and filters before it; `name.branch` for one branch of a route.",
        examples=["shop", ["shop", "split.large"]],
    )
    lane: str | None = Field(None, description="Outputs of the same lane share one query, and wait for each other.")
    on_change: Literal["stop", "continue", "rebuild"] = Field(
        "stop",
        description="What to do with a table whose rows were written before its filters, or what else decides its rows "
        "here, were changed: `stop`; `continue`, which keeps them and has only later changes go the new way; or "
        "`rebuild`, which removes them and has the table read anew. A snapshot goes to all outputs of the source: if a "
        "table is read anew for one, a history beside it has those rows again, marked `_snapshot`, and a mirror that "
        "continues holds only rows of the new way then.",
    )
