"""What a run reports: events, progress, status, journals; and how it is paused and stopped. Start with `_status.py`."""

from databus.pipeline.telling._batch_journal import BatchJournal, last_batches, read_batches
from databus.pipeline.telling._events import OnEvent, reporting
from databus.pipeline.telling._journal import Journal, read_journal
from databus.pipeline.telling._progress import OutputState, RunProgress, unwell, why_refused, worst_backlogs
from databus.pipeline.telling._reminders import Reminders
from databus.pipeline.telling._resting import Rest, Resting, Throttle
from databus.pipeline.telling._status import StatusFile, read_status, with_backlog
from databus.pipeline.telling._stopping import (
    LET_GO_S_MAX,
    QUERIES_S_MAX,
    STOP_S_MAX,
    OnOverdue,
    Overdue,
    in_background,
    left_after,
    stopping,
)

__all__ = [
    "LET_GO_S_MAX",
    "QUERIES_S_MAX",
    "STOP_S_MAX",
    "BatchJournal",
    "Journal",
    "OnEvent",
    "OnOverdue",
    "OutputState",
    "Overdue",
    "Reminders",
    "Rest",
    "Resting",
    "RunProgress",
    "StatusFile",
    "Throttle",
    "in_background",
    "last_batches",
    "left_after",
    "read_batches",
    "read_journal",
    "read_status",
    "reporting",
    "stopping",
    "unwell",
    "why_refused",
    "with_backlog",
    "worst_backlogs",
]
