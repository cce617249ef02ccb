"""Filter `python`: a user's function over Arrow batches of one table, run in Spark's workers.

    def add_total(batch: pa.RecordBatch) -> pa.RecordBatch: ...

The batch has the table's columns and the bus's; a batch with rows left out or columns changed comes back. It is named
`module:function`, importable by the executors, or `file.py:function`, whose text travels with the job. Controls pass
by without being shown to it.
"""

import hashlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from databus.core import CHANGE_TYPE, CONTROL, ConfigError, InputError
from databus.pipeline._contract import Filter, FilterConfig
from databus.pipeline.filters._columns import CONTROL_LABEL, META_COLUMNS, is_meta
from databus.schema import forms_of
from databus.tasks import Lineage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FUNCTION: Final = re.compile(r"(?P<where>.+):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
SCRIPT_BYTES_MAX: Final = 4 << 20

Function = Callable[[pa.RecordBatch], Any]


class PythonConfig(FilterConfig):
    """A function of the user's over Arrow batches. SQL costs a third of it."""

    type: Literal["python"] = "python"
    table: str | None = Field(
        None, description="The table, as `db.table` or `physical/db.table`; needed after an edge of many tables."
    )
    function: str = Field(
        description="`module:function`, or `file.py:function` relative to the pipeline's file. It takes and returns a "
        "pyarrow RecordBatch with the table's columns and the bus's. It may leave rows out, and must leave the key's "
        "columns as they are before a mirror, which cannot tell: rows to which it gives one key become one.",
        examples=["filters.py:mask_email", "mypackage.filters:mask_email"],
    )
    columns: dict[str, str] | None = Field(
        None,
        min_length=1,
        description="Name and type of each column that it returns, without the bus's. Default: those that it takes.",
        examples=[{"id": "int64", "email_hash": "string"}],
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
                raise ValueError(f"{name} is one of the bus's own columns, which go along by themselves")
            try:
                forms_of(kind)
            except ConfigError as error:
                raise ValueError(f"{name}: {error}") from None
        return value


class PythonFilter(Filter):
    """See this module's first lines."""

    config_model: ClassVar[type[FilterConfig]] = PythonConfig

    def __init__(self, config: PythonConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.config: PythonConfig = config

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
        """Of the script, as it was when it was first asked for: what runs is what the ledger is told of."""
        return None if self._script is None else _text_of(self._script)

    def problems(self) -> list[tuple[str, str]]:
        """A function that is not there. A module is looked for, and not imported: that could do anything."""
        where, _, name = self.config.function.rpartition(":")
        script = self._script
        if script is None:
            try:
                found = importlib.util.find_spec(where.partition(".")[0]) is not None
            except (ImportError, ValueError):
                found = False
            return [] if found else [("function", f"no module called {where}; for a file, write file.py:{name}")]
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
        """See `Filter.lineage`: nobody can tell what a function reads."""
        if self.config.columns is None:
            return super().lineage(names, branch)
        return Lineage(dict.fromkeys(self.config.columns), is_opaque=True)

    def form(self, branch: str | None) -> Mapping[str, Any]:
        """See `Filter.form`: with the text of a file; of a module nothing but its name is known."""
        return {**super().form(branch), "text": hashlib.sha256((self._text or "").encode()).hexdigest()}

    def apply(self, rows: "DataFrame", branch: str | None) -> "DataFrame":
        """What the function makes of the rows."""
        del branch
        from pyspark.sql.types import StructField, StructType

        from databus.spark import arrow_schema

        meta = [field for field in rows.schema.fields if is_meta(field.name)]
        if self.config.columns is None:
            fields = [field for field in rows.schema.fields if not is_meta(field.name)]
        else:
            fields = [_spark_field(StructField, name, kind) for name, kind in self.config.columns.items()]
        schema = StructType([*fields, *meta])
        mapper = _Mapper(self.config.function, self._text, arrow_schema(schema))
        return rows.mapInArrow(mapper, schema)


def _spark_field(field_class: Any, name: str, kind: str) -> Any:
    return field_class.fromJson({"name": name, "type": forms_of(kind).spark, "nullable": True, "metadata": {}})


def _text_of(script: Path) -> str:
    text = script.read_text(encoding="utf-8")
    if len(text) > SCRIPT_BYTES_MAX:
        raise ConfigError(f"{script}: {len(text)} characters; a script has at most {SCRIPT_BYTES_MAX}")
    return text


@lru_cache(maxsize=64)
def _function_of(name: str, text: str | None) -> Function:
    where, _, attribute = name.rpartition(":")
    try:
        if text is None:
            module = importlib.import_module(where)
        else:
            module = ModuleType("databus_filter")
            exec(compile(text, where, "exec"), module.__dict__)  # noqa: S102 - the user's own function
        found = getattr(module, attribute)
    except Exception as error:
        raise ConfigError(f"function {name} does not load: {type(error).__name__}: {error}") from error
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(f"function {name}: {attribute} is not a function")
    return found  # type: ignore[no-any-return]


class _Mapper:
    """What the workers run; carries names and text, so that it can be sent anywhere."""

    def __init__(self, name: str, text: str | None, schema: pa.Schema) -> None:
        self._name, self._text, self._schema = name, text, schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = _function_of(self._name, self._text)
        for batch in batches:
            is_control = pc.equal(batch.column(CHANGE_TYPE), CONTROL_LABEL)
            rows = batch.filter(pc.invert(is_control)) if pc.any(is_control).as_py() else batch
            if rows.num_rows:
                yield self._checked(self._call(function, rows), rows)
            if rows.num_rows < batch.num_rows:
                yield self._controls(batch.filter(is_control))

    def _call(self, function: Function, rows: pa.RecordBatch) -> Any:
        try:
            return function(rows.drop_columns([CONTROL]))
        except Exception as error:
            raise InputError(
                f"function {self._name} failed on a batch of {rows.num_rows} rows: {type(error).__name__}: {error}"
            ) from error

    def _checked(self, result: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(result, pa.Table):
            batches = result.combine_chunks().to_batches()
            result = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)
        if not isinstance(result, pa.RecordBatch):
            raise InputError(
                f"function {self._name} returned {type(result).__name__}; it must return a pyarrow RecordBatch or Table"
            )
        columns = [self._column(result, rows, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, result: pa.RecordBatch, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = result.schema.get_field_index(field.name)
        if field.name == CONTROL:
            return pa.nulls(result.num_rows, field.type)
        if index < 0 and is_meta(field.name) and result.num_rows == rows.num_rows:
            return rows.column(field.name)
        if index < 0:
            hint = (
                "it must keep the bus's columns, since it returned another number of rows"
                if is_meta(field.name)
                else f"it returned {', '.join(result.schema.names)}; say what it returns with `columns`"
            )
            raise InputError(f"function {self._name} returned no column {field.name!r}; {hint}")
        column = result.column(index)
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise InputError(
                f"function {self._name} returned column {field.name!r} as {column.type}, which is not {field.type}: "
                f"{error}"
            ) from error

    def _controls(self, controls: pa.RecordBatch) -> pa.RecordBatch:
        named: Mapping[str, pa.Array] = {name: controls.column(name) for name in META_COLUMNS}
        columns = [
            named[field.name] if field.name in named else pa.nulls(controls.num_rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
