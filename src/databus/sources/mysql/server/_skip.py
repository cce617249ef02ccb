"""Repair: passing over transactions of a server's log that cannot be captured, by an operator's decision.

Nothing of them is decoded; only their statements are followed, so that the tables stay known.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from databus.core import ServiceUnavailable
from databus.sources.mysql.binlog import LoggedStatement, LogRun, Scanner
from databus.sources.mysql.server._dump import Dump

_WAIT_S_MAX: Final = 10.0  # for the next transaction


class NoFeed:
    """The log of a session that only says where it begins."""

    def take(self, wait_s: float) -> npt.NDArray[np.uint8] | None:
        """Nothing, at once."""
        del wait_s
        return None

    def wake(self) -> None:
        """No thread waits."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class Passed:
    """Transactions that were passed over."""

    ids: list[str] = field(default_factory=list)
    ordinal: int = 0
    """The last one's."""
    commit_us: int = 0
    position: Mapping[str, Any] = field(default_factory=dict)
    """Where the last one ends."""

    def note(self, txid: str, ordinal: int, commit_us: int, position: Mapping[str, Any]) -> None:
        """Add one."""
        self.ids.append(txid)
        self.ordinal, self.commit_us, self.position = ordinal, commit_us, position


def pass_over(dump: Dump, scanner: Scanner, transactions: int, learn: Callable[[LoggedStatement], None]) -> Passed:
    """Read so many transactions to their ends.

    Raises `ServiceUnavailable` if the next does not come within ten seconds.
    """
    skipped = Passed()
    end = time.monotonic() + _WAIT_S_MAX
    while len(skipped.ids) < transactions:
        match scanner.next():
            case None:
                block = dump.take(0.1)
                if block is not None:
                    scanner.feed(block)
                elif time.monotonic() > end:
                    raise ServiceUnavailable(
                        f"only {len(skipped.ids)} of {transactions} transactions came; nothing was changed. Where "
                        f"nothing comes, nothing need be skipped"
                    )
            case LogRun() as run:
                end = time.monotonic() + _WAIT_S_MAX
                _note_run(skipped, run, transactions)
            case LoggedStatement() as statement:
                learn(statement)
                if statement.is_complete and statement.position is not None:
                    skipped.note(statement.txid, statement.scn, statement.commit_us, statement.position)
            case _:  # where a file ends, a heartbeat
                continue
    return skipped


def _note_run(skipped: Passed, run: LogRun, transactions: int) -> None:
    """Note its finished transactions, as far as they are meant."""
    finished = len(run) if run.is_complete else len(run) - 1
    count = min(finished, transactions - len(skipped.ids))
    ids = run.txids(0, count).to_pylist() if count else []
    for at, txid in enumerate(ids):
        skipped.note(str(txid), int(run.scn[at]), int(run.commit_us[at]), run.position(at))
