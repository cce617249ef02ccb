"""What an ALTER TABLE does to columns that it does not name, where the server writes all rows into a new table.

MySQL and MariaDB store each value again then, as the session is set: a TIMESTAMP goes through its time zone, an invalid
date through its sql_mode, and stored generated columns are computed. Whether a server copies depends on settings that
no log has (old_alter_table, the engine), unless the statement says it. So a change is proven harmless by its session,
by the columns, or by ALGORITHM=INPLACE, INSTANT or NOCOPY, which servers refuse where they would have to copy.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.tables._change_class import UNPROVEN, Reason, is_strict
from databus.sources.mysql.tables._time_zones import has_one_offset

_TIMESTAMPS: Final = frozenset({FieldType.TIMESTAMP, FieldType.TIMESTAMP2})
_DATES: Final = frozenset({FieldType.DATE, FieldType.NEWDATE, FieldType.DATETIME, FieldType.DATETIME2})


def moved_times(
    kept: Mapping[str, ColumnDefinition], time_zone: str | None, system_zone: str | None
) -> Iterator[Reason]:
    """Of MySQL, why values of TIMESTAMP columns may be others. kept: old columns by their new names.

    time_zone: as logged, which is where the statement used it, and no copy of a TIMESTAMP does without; None elsewhere.
    """
    if time_zone is None or has_one_offset(time_zone, system_zone):
        return
    for name, column in kept.items():
        if column.type in _TIMESTAMPS:
            why = f"a copy of the table may have moved times in an hour that comes twice in time_zone {time_zone!r}"
            yield Reason(name, UNPROVEN, why)


def changed_dates(kept: Mapping[str, ColumnDefinition], sql_mode: int) -> Iterator[Reason]:
    """Why invalid dates may be others, where consumers have their text; else they are NULL, or never came.

    A strict server refuses to copy them, or leaves them.
    """
    if is_strict(sql_mode):
        return
    for name, column in kept.items():
        if column.type in _DATES:
            why = "a copy of the table may have made invalid dates 0000-00-00, as sql_mode is not strict"
            yield Reason(name, UNPROVEN, why)


def computed_again(
    kept: Mapping[str, ColumnDefinition], old: Mapping[str, ColumnDefinition], sql_mode: int, *, is_asked: bool
) -> Iterator[Reason]:
    """Why values of stored generated columns may be others. is_asked: whether the statement asks for a copy."""
    for name, column in kept.items():
        if column.uses is None:
            if is_asked:
                yield Reason(name, UNPROVEN, "it may be generated, and a copy of the table has computed it again")
        elif column.is_generated and not (column.is_steady and _are_steady(column.uses, old, sql_mode)):
            yield Reason(name, UNPROVEN, "a copy of the table may have computed it again, under other settings")


def _are_steady(names: tuple[str, ...], old: Mapping[str, ColumnDefinition], sql_mode: int) -> bool:
    """Whether expressions see the same in these columns in every session."""
    used = [old[name] for name in names if name in old]
    has_zone = any(column.type in _TIMESTAMPS for column in used)
    is_padded = any(column.type is FieldType.STRING and column.charset != BINARY for column in used)
    may_change = not is_strict(sql_mode) and any(column.type in _DATES for column in used)
    return not (has_zone or is_padded or may_change)  # padded: by PAD_CHAR_TO_FULL_LENGTH
