"""Filter `python`: a user's function over Arrow batches of one table, run in Spark's workers.

    def add_total(batch: pa.RecordBatch) -> pa.RecordBatch: ...

The batch has the table's columns and the bus's; the function may drop rows or change columns. It is named
`module:function`, importable by the executors, or `file.py:function`, whose text is sent with the job. Controls are not
passed to it.
"""

import hashlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field, field_validator

from databus.core import ConfigError
from databus.flow import META_COLUMNS, Lineage, Mapper, is_meta
from databus.plugins import Filter, FilterConfig
from databus.schema import forms_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FUNCTION: Final = re.compile(r"(?P<where>.+):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
SCRIPT_BYTES_MAX: Final = 4 << 20


class PythonConfig(FilterConfig):
    """A user's function over Arrow batches. SQL costs a third of it."""

    type: Literal["python"] = "python"
    table: str | None = Field(
        None, description="The table, as `db.table` or `physical/db.table`; needed after an edge of many tables."
    )
    function: str = Field(
        description="`module:function`, or `file.py:function` relative to the pipeline's file. It takes and returns a "
        "pyarrow RecordBatch with the table's columns and the bus's. It may drop rows. Before a mirror it must not "
        "change the key's columns: rows with an equal key become one row. It gets a part of one batch of one table, "
        "and must not keep state between calls: what is counted or remembered over batches belongs into a query over "
        "the copy.",
        examples=["filters.py:mask_email", "mypackage.filters:mask_email"],
    )
    columns: dict[str, str] | None = Field(
        None,
        min_length=1,
        description="Name and type of each column that it returns, without the bus's. Default: those that it gets.",
        examples=[{"id": "int64", "email_hash": "string"}],
    )

    keeps_rows: bool = Field(
        False,
        description="Whether it returns as many rows as it gets, which is checked. Needed if updates come without "
        "first images (`first_images` of a source `kafka`): a row that it dropped would stay in a copy.",
    )

    @field_validator("function")
    @classmethod
    def _check_function(cls, value: str) -> str:
        if not _FUNCTION.fullmatch(value):
            raise ValueError(f'"{value}" is neither module:function nor file.py:function')
        return value

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for name, kind in (value or {}).items():
            if name in META_COLUMNS:
                raise ValueError(f"{name} is one of the bus's own columns, which are always kept")
            try:
                forms_of(kind)
            except ConfigError as error:
                raise ValueError(f"{name}: {error}") from None
        return value


class PythonFilter(Filter):
    """See this module's first lines."""

    config_model: ClassVar[type[FilterConfig]] = PythonConfig
    config: PythonConfig

    @property
    def table(self) -> str | None:
        """The table that it is about."""
        return self.config.table

    @property
    def _script(self) -> Path | None:
        where = self.config.function.rpartition(":")[0]
        return self.folder / where if where.endswith(".py") else None

    @cached_property
    def _text(self) -> str | None:
        """The script's text, read once, so that the text that runs is the one whose hash is in the ledger."""
        return None if self._script is None else _text_of(self._script)

    def problems(self) -> list[tuple[str, str]]:
        """A missing function. A module is only searched for, not imported, since that runs its code."""
        where, _, name = self.config.function.rpartition(":")
        script = self._script
        if script is None:
            try:
                is_there = importlib.util.find_spec(where.partition(".")[0]) is not None
            except (ImportError, ValueError):
                is_there = False
            return [] if is_there else [("function", f"no module called {where}; for a file, write file.py:{name}")]
        try:
            tree = compile(_text_of(script), str(script), "exec")
        except OSError as error:
            return [("function", f"{script}: {error.strerror}")]
        except SyntaxError as error:
            return [("function", f"{script}, line {error.lineno}: {error.msg}")]
        if name not in tree.co_names:
            return [("function", f"{script} has no function called {name}")]
        return []

    def lineage(self, names: Sequence[str], branch: str | None) -> Lineage:
        """See `Filter.lineage`: what a function reads is unknown."""
        if self.config.columns is None:
            return super().lineage(names, branch)
        return Lineage(dict.fromkeys(self.config.columns), is_opaque=True)

    def leaves_out_rows(self, branch: str | None) -> bool:
        """See `Filter.leaves_out_rows`."""
        del branch
        return not self.config.keeps_rows

    def form(self, branch: str | None) -> Mapping[str, Any]:
        """See `Filter.form`: with a hash of a file's text; of a module only its name is known."""
        options = {name: value for name, value in super().form(branch).items() if name != "keeps_rows"}
        return {**options, "text": hashlib.sha256((self._text or "").encode()).hexdigest()}

    def apply(self, rows: "DataFrame", branch: str | None) -> "DataFrame":
        """The rows behind the function."""
        del branch
        from pyspark.sql.types import StructField, StructType

        from databus.spark import arrow_schema

        meta = [field for field in rows.schema.fields if is_meta(field.name)]
        if self.config.columns is None:
            fields = [field for field in rows.schema.fields if not is_meta(field.name)]
        else:
            kinds = {name: forms_of(kind).spark for name, kind in self.config.columns.items()}
            fields = [
                StructField.fromJson({"name": name, "type": kind, "nullable": True, "metadata": {}})
                for name, kind in kinds.items()
            ]
        schema = StructType([*fields, *meta])
        keeps = self.config.keeps_rows
        mapper = Mapper(self.config.function, self._text, arrow_schema(schema), keeps_rows=keeps)
        return rows.mapInArrow(mapper, schema)


def _text_of(script: Path) -> str:
    text = script.read_text(encoding="utf-8")
    if len(text) > SCRIPT_BYTES_MAX:
        raise ConfigError(f"{script}: {len(text)} characters; a script has at most {SCRIPT_BYTES_MAX}")
    return text
