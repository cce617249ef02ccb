"""Up to where each table of an output is in its target: places, and what follows from them at a start and after a
batch. Pure; no I/O. Start with `Position`, then `reconcile`; docs/guarantees.md has the rules.
"""

from databus.places._held import Held, Noted, identity, place_at
from databus.places._position import (
    ASKED,
    GAP,
    Choice,
    Position,
    Seed,
    choice_from_json,
    choice_to_json,
    chosen_by,
    patterns_in,
    read_by,
    seed_after,
)
from databus.places._reconcile import (
    ChosenTables,
    ForeignTarget,
    LogPurged,
    MissingRows,
    PartOfTransaction,
    Stopped,
    WayChanged,
    reconcile,
)

__all__ = [
    "ASKED",
    "GAP",
    "Choice",
    "ChosenTables",
    "ForeignTarget",
    "Held",
    "LogPurged",
    "MissingRows",
    "Noted",
    "PartOfTransaction",
    "Position",
    "Seed",
    "Stopped",
    "WayChanged",
    "choice_from_json",
    "choice_to_json",
    "chosen_by",
    "identity",
    "patterns_in",
    "place_at",
    "read_by",
    "reconcile",
    "seed_after",
]
