"""Durable consumers and groups: who holds which partition, and how far each has come. Start with `Coordinator`."""

from databus.relay.groups._call import (
    CallAnswer,
    CallBody,
    MemberCall,
    ReportBody,
    check_name,
)
from databus.relay.groups._coordinator import Clocks, Coordinator, GroupLimits, unknown_group
from databus.relay.groups._keeper import GroupKeeper
from databus.relay.groups._names import Listed, NameState
from databus.relay.groups._operations import Exported, bring_in, delete, export, pause, report, reset, resize
from databus.relay.groups._state import ConsumerGroup

__all__ = [
    "CallAnswer",
    "CallBody",
    "Clocks",
    "ConsumerGroup",
    "Coordinator",
    "Exported",
    "GroupKeeper",
    "GroupLimits",
    "Listed",
    "MemberCall",
    "NameState",
    "ReportBody",
    "bring_in",
    "check_name",
    "delete",
    "export",
    "pause",
    "report",
    "reset",
    "resize",
    "unknown_group",
]
