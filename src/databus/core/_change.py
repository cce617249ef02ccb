"""Changes: their types and the columns that the bus adds to every row.

The names are those of Spark's changelog and of Delta's change data feed, so that tools which know those know ours.
"""

from enum import IntEnum, StrEnum
from typing import Final


class ChangeType(IntEnum):
    """What happened to a row; `label` is the name that users see."""

    INSERT = 1
    UPDATE_PREIMAGE = 2
    UPDATE_POSTIMAGE = 3
    DELETE = 4

    @property
    def label(self) -> str:
        """The name in JSON and Spark.

        >>> ChangeType.UPDATE_PREIMAGE.label
        'update_preimage'
        """
        return self.name.lower()


class ControlKind(StrEnum):
    """What a control frame says about a source."""

    SCHEMA = "schema"
    TRUNCATE = "truncate"
    DROP = "drop"
    SNAPSHOT_BEGIN = "snapshot_begin"
    SNAPSHOT_END = "snapshot_end"
    GAP = "gap"


CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
SEQ: Final = "_seq"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
TXID: Final = "_txid"
SNAPSHOT: Final = "_snapshot"

BUS_COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, SEQ, COMMIT_TIMESTAMP, TXID, SNAPSHOT)
"""The bus's own columns, in the order in which they follow the table's in every frame."""

SOURCE: Final = "_source"
CONTROL: Final = "_control"

RESERVED_COLUMNS: Final = (*BUS_COLUMNS, SOURCE, CONTROL)
"""Names that no column of a table has: the bus's own columns, and what JSON and Spark's rows add to them."""
