"""The Spark data source `databus`, and session settings. Start with `DatabusSource`."""

from databus.spark._errors import error_of, is_of_slow_workers
from databus.spark._options import DatabusOptions
from databus.spark._private import is_damaged, is_starting, last_done, offset_of, settle_session
from databus.spark._ranges import TypedRanges, ranges_after
from databus.spark._schema import FRAMES_SCHEMA, arrow_schema, typed_schema
from databus.spark._session import (
    class_file,
    how_spark_ended,
    is_local,
    make_class_file,
    slots_of,
    tuned_session,
)
from databus.spark._shipping import SHIPPED, Shipment, make_archive
from databus.spark._source import DatabusSource

__all__ = [
    "FRAMES_SCHEMA",
    "SHIPPED",
    "DatabusOptions",
    "DatabusSource",
    "Shipment",
    "TypedRanges",
    "arrow_schema",
    "class_file",
    "error_of",
    "how_spark_ended",
    "is_damaged",
    "is_local",
    "is_of_slow_workers",
    "is_starting",
    "last_done",
    "make_archive",
    "make_class_file",
    "offset_of",
    "ranges_after",
    "settle_session",
    "slots_of",
    "tuned_session",
    "typed_schema",
]
