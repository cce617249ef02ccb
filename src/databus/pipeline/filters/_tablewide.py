"""Filters over whole tables: `where`, `project`, `rename`, `mask` and `unnest`. One may cover a thousand tables."""

import hmac
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from databus.core import ConfigError
from databus.flow import Mask, Project, Rename, TableFilter, Unnest, Where
from databus.plugins import FilterConfig, Names, TablesFilter, TablesFilterConfig
from databus.schema import forms_of

Texts = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]),
]
"""Texts; a single one may be without brackets."""


class PlainFilter(TablesFilter):
    """A filter whose step has just its options."""

    step: ClassVar[type[TableFilter]]

    @cached_property
    def in_tasks(self) -> TableFilter:
        """See `TablesFilter.in_tasks`."""
        return self._of_options(self.step)


class WhereConfig(TablesFilterConfig):
    """Rows for which a condition holds, of any number of tables, without Spark's SQL."""

    type: Literal["where"] = "where"
    where: str = Field(
        min_length=1,
        description="Condition over the table's columns: comparisons, `IN`, `LIKE`, `BETWEEN`, `IS NULL`, `AND`, `OR`, "
        "`NOT`. See docs/recipes.md, Filter a thousand tables.",
        examples=["deleted_at IS NULL AND region IN ('CH', 'FR')"],
    )


class WhereFilter(TablesFilter):
    """See `WhereConfig`."""

    config_model: ClassVar[type[FilterConfig]] = WhereConfig
    config: WhereConfig

    @cached_property
    def in_tasks(self) -> Where:
        """See `TablesFilter.in_tasks`."""
        return self._of_options(Where, condition=self.config.where)

    def problems(self) -> list[tuple[str, str]]:
        """A condition that is not valid."""
        try:
            self.in_tasks.predicate  # noqa: B018 - parsed when it is asked for
        except ConfigError as error:
            return [("where", str(error))]
        return []


class ProjectConfig(TablesFilterConfig):
    """Some of the columns of any number of tables. The others reach no output; a key's columns have to stay."""

    type: Literal["project"] = "project"
    columns: Texts | None = Field(None, min_length=1, description="The columns that stay.", examples=[["id", "status"]])
    exclude: Texts | None = Field(
        None, min_length=1, description="Or the columns that are dropped.", examples=[["password", "ssn"]]
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.columns is None) == (self.exclude is None):
            raise ValueError("give either `columns` or `exclude`")
        return self


class ProjectFilter(PlainFilter):
    """See `ProjectConfig`."""

    config_model: ClassVar[type[FilterConfig]] = ProjectConfig
    step = Project


class RenameConfig(TablesFilterConfig):
    """Other names for columns of any number of tables."""

    type: Literal["rename"] = "rename"
    columns: dict[str, str] = Field(
        min_length=1,
        description="The new name, by the name in the table.",
        examples=[{"cust_no": "customer"}],
    )


class RenameFilter(PlainFilter):
    """See `RenameConfig`."""

    config_model: ClassVar[type[FilterConfig]] = RenameConfig
    step = Rename


_SALT_BYTES_MIN: Final = 16


class MaskConfig(TablesFilterConfig):
    """Hides the values of columns, of any number of tables, before any output."""

    type: Literal["mask"] = "mask"
    hash: Texts = Field(
        default_factory=list,
        description="Columns that get a hash instead: HMAC-SHA-256 of the value as text, in 64 hexadecimal digits. "
        "Equal values have equal hashes. Columns of a key may be hashed.",
        examples=[["email", "customer_id"]],
    )
    redact: Texts = Field(default_factory=list, description="Columns that become NULL.", examples=[["phone"]])
    truncate: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Columns of text or binary of which only so many first characters or bytes are kept.",
        examples=[{"name": 1}],
    )
    salt: SecretStr | None = Field(
        None,
        description="Secret of `hash`, at least 16 bytes; another salt makes other hashes. Name it by reference: it is "
        "in no log, state or message.",
        examples=["${MASK_SALT}", "${file:/run/secrets/salt}"],
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        named = [name.lower() for name in (*self.hash, *self.redact, *self.truncate)]
        if not named:
            raise ValueError("give at least one of `hash`, `redact` and `truncate`")
        twice = [name for name in named if named.count(name) > 1]
        if twice:
            raise ValueError(f"column {twice[0]} is named twice")
        if self.hash and (self.salt is None or len(self.salt.get_secret_value().encode()) < _SALT_BYTES_MIN):
            raise ValueError(f"hash needs a `salt` of at least {_SALT_BYTES_MIN} bytes, such as ${{MASK_SALT}}")
        return self


class MaskFilter(TablesFilter):
    """See `MaskConfig`."""

    config_model: ClassVar[type[FilterConfig]] = MaskConfig

    config: MaskConfig

    @cached_property
    def in_tasks(self) -> Mask:
        """See `TablesFilter.in_tasks`."""
        salt = self.config.salt
        return self._of_options(Mask, salt=b"" if salt is None else salt.get_secret_value().encode())

    def form(self, branch: str | None) -> Mapping[str, Any]:
        """See `Filter.form`. The salt is hashed for this purpose only."""
        salt = None if self.config.salt is None else self.config.salt.get_secret_value()
        salt_hash = (
            None if salt is None else hmac.new(salt.encode(), b"databus: which salt is it", "sha256").hexdigest()
        )
        return {**super().form(branch), "salt": salt_hash}


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
"""`null` without quotes is None in YAML; here it means the text."""


class UnnestConfig(TablesFilterConfig):
    """The objects in a JSON column as rows: an array of objects gives a row for each, an object gives one.

    The result has the columns of the table's key, those of `keep`, the ordinal, and those of `columns`; its key is the
    table's key and the ordinal. Rows follow their array: an object that is removed from it is deleted. The table keeps
    its name; give the result another one by the output's `path`, `topic` or `index`.
    """

    type: Literal["unnest"] = "unnest"
    tables: Names = Field(
        description="Tables that it is about, as `physical/db.table`, `db.table` or `table`; `*` stands for any run of "
        "characters. Others pass as they are.",
        examples=[["main.orders"]],
    )
    column: str = Field(min_length=1, description="Column of text with JSON.", examples=["lines"])
    columns: dict[str, Annotated[str, AfterValidator(_is_type)]] = Field(
        min_length=1,
        description="The type, by member of the objects. Other members are dropped; one that is missing or null is "
        "NULL.",
        examples=[{"sku": "string", "quantity": "int32", "price": "decimal(10,2)"}],
    )
    required: Texts = Field(
        default_factory=list,
        description="Members that must not be missing or null; with `on_error: stop`.",
        examples=[["sku"]],
    )
    keep: Texts = Field(
        default_factory=list, description="More columns of the table in the result.", examples=[["customer_id"]]
    )
    ordinal: str = Field(
        "ordinal", min_length=1, description="The column with an object's place in its array, from 1 on."
    )
    on_error: _OnError = Field(
        "stop",
        description="What happens if a text is not JSON, or a value is not of its type: the output stops and names the "
        "row; or, with `null`, that value is NULL, and a text that is not JSON gives no rows.",
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
        return self._of_options(Unnest, members=self.config.columns)

    def option_of(self, name: str) -> str:
        """See `TablesFilter.option_of`."""
        return "column" if name == self.config.column else "keep"
