"""The Spark data source `databus`, and session settings. Start with `DatabusSource`."""

from databus.spark._archive import make_archive
from databus.spark._classes import class_file
from databus.spark._errors import error_of, is_of_slow_workers
from databus.spark._options import DatabusOptions
from databus.spark._private import is_damaged, is_starting, last_done, offset_of, settle_session
from databus.spark._ranges import ranges_after
from databus.spark._schema import CONTROL_LABEL, FRAMES_SCHEMA, RANGES_SCHEMA, arrow_schema, typed_schema
from databus.spark._session import LOG_FILE, OUTPUT_FILE, how_spark_ended, is_local, tuned_session
from databus.spark._shipping import SHIPPED, Shipment
from databus.spark._slots import slots_of
from databus.spark._source import DatabusSource
from databus.spark._typed_ranges import TypedRanges
from databus.spark._warm_up import make_class_file

__all__ = [
    "CONTROL_LABEL",
    "FRAMES_SCHEMA",
    "LOG_FILE",
    "OUTPUT_FILE",
    "RANGES_SCHEMA",
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
