"""Serves what has left the relay's log, from the stores that a pipeline fills. Start with `plan`, then `answered`."""

from databus.bootstrap._ask import AnswerRequest
from databus.bootstrap._commands import answers_of, status_of
from databus.bootstrap._config import (
    BootstrapFile,
    BootstrapSection,
    KeepSection,
    RelayAt,
    load_bootstrap,
)
from databus.bootstrap._cut import cut_off
from databus.bootstrap._erase import erase
from databus.bootstrap._look_back import RowKey, diff_of, history_of, lines_of, written_into
from databus.bootstrap._noting import NoteTaker
from databus.bootstrap._plan import EveryChange, KeptPast, StateAnswer, TableExtent, is_eligible, kinds_of, plan
from databus.bootstrap._render import Stores, answered, every_change
from databus.bootstrap._service import BootstrapServer, keyless_tables, run_bootstrap
from databus.bootstrap._standing import standing_at
from databus.bootstrap._state_copy import copy_state
from databus.bootstrap._table_past import Moment, TablePast
from databus.bootstrap._verify import verified

__all__ = [
    "AnswerRequest",
    "BootstrapFile",
    "BootstrapSection",
    "BootstrapServer",
    "EveryChange",
    "KeepSection",
    "KeptPast",
    "Moment",
    "NoteTaker",
    "RelayAt",
    "RowKey",
    "StateAnswer",
    "Stores",
    "TableExtent",
    "TablePast",
    "answered",
    "answers_of",
    "copy_state",
    "cut_off",
    "diff_of",
    "erase",
    "every_change",
    "history_of",
    "is_eligible",
    "keyless_tables",
    "kinds_of",
    "lines_of",
    "load_bootstrap",
    "plan",
    "run_bootstrap",
    "standing_at",
    "status_of",
    "verified",
    "written_into",
]
