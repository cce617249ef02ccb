"""Filter `unnest`: the objects in a JSON column become rows of a table of their own."""

from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from databus.core import ConfigError
from databus.flow import Unnest
from databus.pipeline.filters._tablewide import Columns
from databus.plugins import FilterConfig, Names, TablesFilter, TablesFilterConfig
from databus.schema import forms_of


def _is_type(name: str) -> str:
    try:
        forms_of(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return name


_OnError = Annotated[
    Literal["stop", "null"],
    BeforeValidator(
        lambda value: "null" if value is None else value, json_schema_input_type=Literal["stop", "null"] | None
    ),
]
"""`null` without quotes is YAML's word for nothing, and is meant as the word that it is."""


class UnnestConfig(TablesFilterConfig):
    """The objects in a JSON column as rows: an array of objects gives a row for each, an object gives one.

    What comes out has the columns of the table's key, those of `keep`, the ordinal, and those of `columns`; it is keyed
    by the table's key and the ordinal. Rows follow their array: what is no longer in it is deleted. The table keeps its
    name, so an output names what it makes of it by its `path`, `topic` or `index`.
    """

    type: Literal["unnest"] = "unnest"
    tables: Names = Field(
        description="Tables that it is about, as `physical/db.table`, `db.table` or `table`; `*` stands for any run of "
        "characters. Others pass as they are.",
        examples=[["main.orders"]],
    )
    column: str = Field(min_length=1, description="Column of text that holds JSON.", examples=["lines"])
    columns: dict[str, Annotated[str, AfterValidator(_is_type)]] = Field(
        min_length=1,
        description="By member of the objects: its type. Members that are not named are left out, and one that is "
        "missing or null is NULL.",
        examples=[{"sku": "string", "quantity": "int32", "price": "decimal(10,2)"}],
    )
    required: Columns = Field(
        default_factory=list,
        description="Members that have to be there and not be null; with `on_error: stop`.",
        examples=[["sku"]],
    )
    keep: Columns = Field(
        default_factory=list, description="More columns of the table that go along.", examples=[["customer_id"]]
    )
    ordinal: str = Field(
        "ordinal", min_length=1, description="The column with an object's place in its array, from 1 on."
    )
    on_error: _OnError = Field(
        "stop",
        description="What happens where a column holds no JSON, or a value is not of its type: the output stops and "
        "names the row; or, with `null`, that value is NULL, and a text that is no JSON gives no rows.",
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.required and self.on_error == "null":
            raise ValueError("`required` goes with `on_error: stop`")
        if unknown := [name for name in self.required if name not in self.columns]:
            raise ValueError(f"`required` names {unknown[0]}, which `columns` does not")
        return self


class UnnestFilter(TablesFilter):
    """See `UnnestConfig`."""

    config_model: ClassVar[type[FilterConfig]] = UnnestConfig
    config: UnnestConfig

    @cached_property
    def in_tasks(self) -> Unnest:
        """See `TablesFilter.in_tasks`."""
        given = self.config
        return Unnest(
            **self.about,
            column=given.column,
            ordinal=given.ordinal,
            members=given.columns,
            required=tuple(given.required),
            keep=tuple(given.keep),
            on_error=given.on_error,
        )

    def option_of(self, name: str) -> str:
        """See `TablesFilter.option_of`."""
        return "column" if name == self.config.column else "keep"
