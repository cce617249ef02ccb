"""Filter `mask`: columns whose values must not be seen, of any number of tables, before any output.

`hash` keeps apart what is apart, and joins what is equal: HMAC-SHA-256 of the value as text, keyed by the salt, in
hexadecimal. `redact` leaves nothing, `truncate` the beginning. NULL stays NULL.
"""

import hmac
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, SecretStr, model_validator

from databus.core import ConfigError
from databus.pipeline._contract import FilterConfig, TablesFilter, TablesFilterConfig
from databus.pipeline._table_step import TableStep
from databus.pipeline.filters._hmac import hmac_hex
from databus.pipeline.filters._tablewide import Columns
from databus.schema import Column, TableSchema, column_named

_SALT_BYTES_MIN: Final = 16
_HASHED: Final = ("bool", "string", "binary", "date", "timestamp", "timestamptz")
_Made = Callable[[pa.Array], pa.Array]


class MaskConfig(TablesFilterConfig):
    """Columns whose values must not be seen, of any number of tables, before any output."""

    type: Literal["mask"] = "mask"
    hash: Columns = Field(
        default_factory=list,
        description="Columns that hold a hash instead: HMAC-SHA-256 of the value as text, in 64 hexadecimal digits. "
        "Equal values have equal hashes. Columns of a key may be hashed.",
        examples=[["email", "customer_id"]],
    )
    redact: Columns = Field(default_factory=list, description="Columns that are NULL instead.", examples=[["phone"]])
    truncate: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Columns of text or binary of which so many first characters or bytes stay.",
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
            raise ValueError(f"column {twice[0]} stands twice")
        if self.hash and (self.salt is None or len(self.salt.get_secret_value().encode()) < _SALT_BYTES_MIN):
            raise ValueError(f"hash needs a `salt` of at least {_SALT_BYTES_MIN} bytes, such as ${{MASK_SALT}}")
        return self


class MaskFilter(TablesFilter):
    """See `MaskConfig`."""

    config_model: ClassVar[type[FilterConfig]] = MaskConfig

    def __init__(self, config: MaskConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.config: MaskConfig = config

    @property
    def names(self) -> Sequence[str]:
        """See `TablesFilter.names`."""
        return (*self.config.hash, *self.config.redact, *self.config.truncate)

    def form(self, branch: str | None) -> Mapping[str, Any]:
        """See `Filter.form`. The salt goes into a hash that nothing else is made of."""
        salt = None if self.config.salt is None else self.config.salt.get_secret_value()
        told = None if salt is None else hmac.new(salt.encode(), b"databus: which salt is it", "sha256").hexdigest()
        return {**super().form(branch), "salt": told}

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TablesFilter.over`."""
        del missing
        columns = {column.name: column for column in table.columns}
        made: dict[str, _Made] = {}
        how: dict[str, Any] = {}
        for name in (column_named(each, table.names) for each in self.config.hash):
            if name is not None:
                made[name], how[name] = self._hash(columns[name]), "hash"
                columns[name] = Column(name, "string", columns[name].nullable)
        for name in (column_named(each, table.names) for each in self.config.redact):
            if name is not None:
                _check_no_key(table, name, "redact")
                made[name], how[name] = _nothing, "redact"
                columns[name] = Column(name, columns[name].type)
        for each, length in self.config.truncate.items():
            name = column_named(each, table.names)
            if name is not None:
                _check_no_key(table, name, "truncate")
                made[name], how[name] = _cut(columns[name], length), ("truncate", length)

        def apply(rows: pa.Table) -> pa.Table:
            for name, function in made.items():
                values = function(rows.column(name).combine_chunks())
                rows = rows.set_column(rows.schema.get_field_index(name), name, values)
            return rows

        after = TableSchema(table.source, tuple(columns.values()), table.key)
        return TableStep(table, after, apply, {name: name for name in table.names}, how)

    def _hash(self, column: Column) -> _Made:
        is_whole = column.type.startswith(("int", "uint")) or column.type.endswith(",0)")
        if not (is_whole or column.type in _HASHED):
            raise ConfigError(f"hash: column {column.name} is {column.type}, whose text is not one for each value")
        assert self.config.salt is not None  # noqa: S101 - the model's promise
        key = self.config.salt.get_secret_value().encode()
        is_bytes = column.type == "binary"
        return lambda values: hmac_hex(values if is_bytes else values.cast(pa.string()), key)


def _check_no_key(table: TableSchema, name: str, option: str) -> None:
    if name in table.key:
        raise ConfigError(
            f"{option}: column {name} is part of the key, by which rows are told apart; it can be hashed (`hash`)"
        )


def _nothing(values: pa.Array) -> pa.Array:
    return pa.nulls(len(values), values.type)


def _cut(column: Column, length: int) -> _Made:
    if column.type == "string":
        return lambda values: pc.utf8_slice_codeunits(values, 0, length)
    if column.type == "binary":
        return lambda values: pc.binary_slice(values, 0, length)
    raise ConfigError(f"truncate: column {column.name} is {column.type}; text and binary can be truncated")
