"""What others may have given a Delta table that tasks, which write its files, do not look at: such tables are refused.

Delta's engine looks at conditions on rows where it writes them. Of ours it is told the names of files alone.
"""

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from databus.core import UnsupportedFeature
from databus.disk import Location
from databus.operate import logger_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOCAL_TIMES: Final = "timestampNtz"
_FEATURES: Final = frozenset({_LOCAL_TIMES})
"""Features of Delta that readers must have, and that our tables may."""

_CONDITION: Final = "delta.constraints."
_OF_COLUMNS: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


def check_features(path: Location, table: "DeltaTable") -> None:
    """Refuse what we do not look for in a table's files and log: rows that are marked as deleted, other names; and
    conditions on its rows, and columns that are computed, which nobody would keep. Raises `UnsupportedFeature`.
    """
    properties = table.metadata().configuration
    found = set(table.protocol().reader_features or ()) - _FEATURES
    if properties.get("delta.columnMapping.mode", "none") != "none":
        found.add("columnMapping")
    if found:
        raise UnsupportedFeature(
            f"{path}: somebody has given the table {', '.join(sorted(found))}, which databus does not write. "
            f"Take it away (`ALTER TABLE ... DROP FEATURE`), or have the table made anew by `databus rebuild`"
        )
    if properties.get("delta.enableChangeDataFeed", "").lower() == "true":
        logger_of("databus.pipeline").warning(
            f"{path}: somebody has switched on Delta's change data feed. Its columns `_change_type`, `_commit_version` "
            f"and `_commit_timestamp` have the names of ours, so that nobody can read it. Switch it off (`ALTER TABLE "
            f"... SET TBLPROPERTIES (delta.enableChangeDataFeed = false)`); `mode: history` has all changes"
        )
    conditions = [name.removeprefix(_CONDITION) for name in properties if name.startswith(_CONDITION)]
    if conditions:
        raise UnsupportedFeature(
            f"{path}: somebody has given the table the constraint {', '.join(sorted(conditions))}, and databus writes "
            f"rows as the source has them, whether they meet it or not. Take it away (`ALTER TABLE ... DROP CONSTRAINT "
            f"{conditions[0]}`); a filter of the pipeline can leave such rows out"
        )
    made = [field.name for field in table.schema().fields if any(name in field.metadata for name in _OF_COLUMNS)]
    if made:
        raise UnsupportedFeature(
            f"{path}: somebody has given the table columns with a rule of their own ({', '.join(made)}: generated, "
            f"identity or checked), which databus does not keep. Put them into a view, and have the table made anew by "
            f"`databus rebuild`"
        )


def lacks_local_times(table: "DeltaTable", schema: pa.Schema) -> bool:
    """Whether a schema has times without a zone, and the table does not say so to its readers. The engine commits such
    a schema all the same, and then opens the table no more.
    """
    has_some = any(pa.types.is_timestamp(field.type) and field.type.tz is None for field in schema)
    return has_some and _LOCAL_TIMES not in (table.protocol().reader_features or ())


def check_may_remove(path: Location, table: "DeltaTable") -> None:
    """Raises `UnsupportedFeature` where somebody has said that rows of the table are never removed."""
    if table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        raise UnsupportedFeature(
            f"{path}: somebody has set `delta.appendOnly` on the table, of which rows are to be removed now. Set it to "
            f"false (`ALTER TABLE ... SET TBLPROPERTIES`), or use `mode: history`"
        )
