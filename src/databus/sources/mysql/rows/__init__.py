"""Row images of the log into Arrow arrays, exactly. Start with `make_plan`, then `decode`.

Result sets of a snapshot end in the same arrays: `describe` says which, `to_text` makes text of any character set.
"""

from databus.sources.mysql.rows._arrow_types import Policies, address_type, bus_type, describe, text_columns
from databus.sources.mysql.rows._decode import Decoded, bus_arrays, decode
from databus.sources.mysql.rows._omit import OMITTED, Omitter
from databus.sources.mysql.rows._plan import DecodePlan, make_plan
from databus.sources.mysql.rows._small_events import SMALL_BYTES, SmallEvents, small_events
from databus.sources.mysql.rows._text import to_text
from databus.sources.mysql.rows._time_text import number_text, result_text

__all__ = [
    "OMITTED",
    "SMALL_BYTES",
    "DecodePlan",
    "Decoded",
    "Omitter",
    "Policies",
    "SmallEvents",
    "address_type",
    "bus_arrays",
    "bus_type",
    "decode",
    "describe",
    "make_plan",
    "number_text",
    "result_text",
    "small_events",
    "text_columns",
    "to_text",
]
