"""SCNs of a source whose own clock does not fit into 55 bits: it counts its transactions, and the log remembers."""

from databus.core import ORDINAL_MAX, LimitExceeded, make_scn, ordinal_of
from databus.log import Resume


class ScnCounter:
    """Gives each transaction the next SCN. Make one at each `start`: it goes on from where the log ends.

    After a crash the log is cut back to its last whole transaction. The source reads on from that one's position, so
    what it yields again gets the SCNs that it had. Two logs count alike only if they began at the same transaction.
    Therefore the `scheme` of such a source's identity is `databus.core.COUNTED`, which is not peerable.
    """

    def __init__(self, resume: Resume) -> None:
        self.scn = resume.scn or make_scn(resume.timeline, 0)
        """SCN of the last transaction."""

    def next(self) -> int:
        """The SCN of the next transaction. Call it for every transaction that is yielded, and for no other."""
        if ordinal_of(self.scn) == ORDINAL_MAX:
            raise LimitExceeded(f"SCN {self.scn}: the timeline has no more; a new one must begin")
        self.scn += 1
        return self.scn
