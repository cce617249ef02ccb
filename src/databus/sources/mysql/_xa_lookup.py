"""An XA transaction that is committed and was prepared before capture began: its rows are looked for in the log.

What is wanted is noted in a file, and capture starts again: it finds the log file that the PREPARE is in, and reads the
server's log from there on, passing over what was captured but for what is prepared.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from databus.core import CorruptData, PositionPurged, ServiceUnavailable
from databus.disk import make_folder, replace_file
from databus.log import Resume
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.binlog import FIRST_OFFSET, Heartbeat, LogPosition, Rotated, Scanner, ordinal_of
from databus.sources.mysql.binlog._position import file_number
from databus.sources.mysql.server import Dump, Fault, ServerFacts, Trouble, scheme_of

_NAME: Final = "prepared-wanted.json"
_LOOK_BYTES_MAX: Final = 64 << 30  # of the log are looked through, the newest first
_WAIT_S_MAX: Final = 30.0  # for more of a file


@dataclass(frozen=True, slots=True)
class WantedTransaction:
    """A prepared XA transaction whose rows are needed."""

    xid: str
    scn: int
    """Of its commit."""

    def save(self, folder: Path) -> None:
        """Keep it, whole. If the file is lost, capture finds the same out again."""
        make_folder(folder)
        replace_file(folder / _NAME, [json.dumps({"xid": self.xid, "scn": self.scn}).encode()], durable=True)

    @classmethod
    def load(cls, folder: Path | None, scn: int) -> Self | None:
        """The transaction that is wanted after `scn`; deletes an earlier one."""
        if folder is None or not (folder / _NAME).exists():
            return None
        try:
            value = json.loads((folder / _NAME).read_text())
            wanted = cls(str(value["xid"]), int(value["scn"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(
                f"{folder / _NAME}: {error!r}; delete it: capture finds out again what it held"
            ) from error
        if wanted.scn <= scn:
            (folder / _NAME).unlink()
            return None
        return wanted


class _Seen:
    """Which XA transactions are prepared in what was read, and neither committed nor rolled back.

    below: by file and offset, where that ends; the scanner reads on behind it.
    """

    def __init__(self, below: int) -> None:
        self.open: set[str] = set()
        self._below = below

    def begin(self) -> None:
        """Nothing is kept."""

    def add(self, event: bytes) -> None:
        """Nothing is kept."""

    def take(self) -> Iterator[bytes]:
        """Nothing was kept."""
        return iter(())

    def prepare(self, xid: str, ordinal: int, *, is_whole: bool) -> None:
        """See `Prepared.prepare`."""
        del is_whole
        if ordinal < self._below:
            self.open.add(xid)

    def commit(self, xid: str, ordinal: int) -> Iterator[bytes] | None:
        """See `Prepared.commit`."""
        self.forget(xid, ordinal)
        return iter(())

    def altered(self, xid: str) -> str:
        """Nothing is kept."""
        del xid
        return ""

    def forget(self, xid: str, ordinal: int) -> None:
        """See `Prepared.forget`."""
        if ordinal < self._below:
            self.open.discard(xid)


def look_for_prepared(
    physical: str, config: MysqlConfig, facts: ServerFacts, resume: Resume, dump: Callable[[LogPosition], Dump]
) -> tuple[str | None, Trouble | None]:
    """The file to read from where something is wanted; or that none has it, if the policy is to read the tables again.

    dump: the log by file and offset, on a connection of its own. Raises `PositionPurged`.
    """
    wanted = WantedTransaction.load(resume.folder, resume.scn)
    if wanted is None or resume.position is None:
        return None, None
    file = file_with(wanted, facts, LogPosition.from_json(resume.position), dump)
    if file is not None:
        return file, None
    trouble = not_there(wanted, facts)
    if config.on_gap == "stop" and config.snapshot != "when_needed":
        raise trouble.error(physical)
    return None, trouble


def file_with(
    wanted: WantedTransaction, facts: ServerFacts, position: LogPosition, dump: Callable[[LogPosition], Dump]
) -> str | None:
    """The newest file that leaves the transaction prepared, up to `position`; None if no file has it any more."""
    logs = facts.logs
    names = [log.name for log in logs]
    if position.file in names and position.server_uuid == facts.uuid:
        logs = logs[: names.index(position.file) + 1]
    looked_at = 0
    for log in reversed(logs):
        if wanted.xid in _open_in(log.name, position, facts, dump):
            return log.name
        looked_at += log.bytes
        if looked_at >= _LOOK_BYTES_MAX:
            break
    return None


def _open_in(name: str, position: LogPosition, facts: ServerFacts, dump: Callable[[LogPosition], Dump]) -> set[str]:
    """What a file prepares and does not decide up to `position`, or up to its end if that comes first.

    With GTIDs, they say what is before `position`: its offset does not, once the server has skipped the transactions
    that it was asked not to send.
    """
    number, scheme, end = file_number(name), scheme_of(facts), None
    if scheme == "file-offset":
        end = position.offset if name == position.file and position.server_uuid == facts.uuid else None
        seen = _Seen((number << 32 | end) if end is not None else (number + 1) << 32)
    else:
        seen = _Seen(ordinal_of(position, scheme) + 1)
    scanner = Scanner(
        facts.flavor,
        _nothing,
        None if scheme == "file-offset" else position,
        scheme=scheme,
        server_uuid=facts.uuid,
        wants_database=_nothing,
        prepared=seen,
        holds_skipped=True,
    )
    place = LogPosition(name, FIRST_OFFSET, None, facts.uuid)
    feed = dump(place)
    heard_s = time.monotonic()
    try:
        while True:
            try:
                event = scanner.next()
            except PositionPurged:  # the file begins later
                return set()
            match event:
                case Heartbeat():
                    return seen.open
                case Rotated() as rotated if file_number(rotated.file) != number:
                    return seen.open
                case None:
                    block = feed.take(0.1)
                    if block is not None:
                        heard_s = time.monotonic()
                        scanner.feed(block)
                    elif time.monotonic() - heard_s > _WAIT_S_MAX:
                        raise ServiceUnavailable(f"{facts.server}: {name} was not sent to its end; capture tries again")
                case _:
                    at = scanner.position
                    if end is not None and at.file == name and at.offset >= end and not scanner.is_in_transaction:
                        return seen.open
    finally:
        feed.close()


def not_there(wanted: WantedTransaction, facts: ServerFacts) -> Trouble:
    """The log has no PREPARE of it any more."""
    return Trouble(
        Fault.PURGED,
        f"XA PREPARE of {wanted.xid}",
        f"{facts.server}: an XA transaction ({wanted.xid}: gtrid and bqual in hexadecimal, format) is committed that "
        f"was prepared before capture began, or before the folder of the log was lost, and the server's log, of which "
        f"the newest {_LOOK_BYTES_MAX >> 30} GiB were looked through, has its PREPARE no more: its rows cannot be had. "
        f"Set `on_gap: resnapshot` to have the captured tables read again "
        f"with a recorded gap, or pass it over with `databus skip`, and snapshot the tables that it changes",
    )


def unfound(error: Exception, physical: str) -> ServiceUnavailable:
    """The error that is raised once the transaction is noted: capture starts again from the log's end."""
    return ServiceUnavailable(f"{physical}: {error}; the log is read again from where it was prepared")


def _nothing(_: object) -> bool:
    return False
