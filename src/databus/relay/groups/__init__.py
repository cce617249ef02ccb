"""Durable consumers and groups: who holds which partition, and how far each has come. Start with `Coordinator`."""

from databus.relay.groups._call import Answer, Call, CallBody, Held, ReportBody, Taken, check_name
from databus.relay.groups._coordinator import Changes, Coordinator, GroupLimits, Now, unknown_group
from databus.relay.groups._keeper import GroupKeeper
from databus.relay.groups._names import Listed, NameState
from databus.relay.groups._operations import Exported, bring_in, delete, export, pause, report, reset, resize
from databus.relay.groups._state import Barrier, Group, Member, Partition

__all__ = [
    "Answer",
    "Barrier",
    "Call",
    "CallBody",
    "Changes",
    "Coordinator",
    "Exported",
    "Group",
    "GroupKeeper",
    "GroupLimits",
    "Held",
    "Listed",
    "Member",
    "NameState",
    "Now",
    "Partition",
    "ReportBody",
    "Taken",
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
