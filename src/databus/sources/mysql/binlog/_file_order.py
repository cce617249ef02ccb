"""When one log file may be left for the next: only where nothing can be missing between the two."""

from pathlib import Path
from typing import Literal

from databus.core import CorruptData, PositionPurged, SourceChanged
from databus.operate import logger_of
from databus.sources.mysql.binlog import file_number
from databus.sources.mysql.binlog._file_ends import (
    DomainGtids,
    FileEnd,
    Gtids,
    HeadIncomplete,
    beyond,
    file_end,
    file_head,
    together,
)

_SHOWN_MAX = 300  # characters of GTIDs in a message
_logger = logger_of("databus.sources.mysql")


def continues(
    path: Path, following: Path, *, is_last: bool, is_open: bool, unfinished: Literal["stop", "pass"]
) -> bool:
    """Whether `following`, the next file that is there, goes on where `path` ends; False: it may, but its head is not
    all there yet.

    is_last: there is no file behind `following`. is_open: `path` ends inside a transaction. unfinished: the option
    `unfinished_files`. Raises `PositionPurged` where a file or the end of one is missing, `SourceChanged` where the
    files are not of one history, `CorruptData` where it cannot be known. Raises `OSError` too.
    """
    end = file_end(path)
    if end is None:
        raise CorruptData(
            f"{path}: the file ends inside an event, and {following.name} is there: the rest of it is missing. Copy it "
            f"again; nothing after it was captured"
        )
    _check_number(path, following, end)
    try:
        before = file_head(following).before
    except HeadIncomplete:
        if is_last:
            return False
        raise CorruptData(
            f"{following}: the file ends inside its head, and others are behind it: the rest of it is missing. Copy it "
            f"again; nothing after {path.name} was captured"
        ) from None
    is_proven = False
    if end.before is not None and before is not None and type(before) is type(end.before):
        is_proven = _check_gtids(path, following, end, before, is_open=is_open)
    if not (end.rotates_to or end.is_stopped or is_proven):
        _unproven(path, following, unfinished)
    return True


def _check_number(path: Path, following: Path, end: FileEnd) -> None:
    wanted = file_number(end.rotates_to) if end.rotates_to else file_number(path.name) + 1
    if file_number(following.name) == wanted:
        return
    named = end.rotates_to or f"number {wanted}"
    raise PositionPurged(
        f"{path}: the log goes on in the file {named}, which is not there; the next one there is {following.name}. "
        f"Put it back; nothing after {path.name} was captured"
    )


def _check_gtids(path: Path, following: Path, end: FileEnd, before: Gtids, *, is_open: bool) -> bool:
    """Whether the GTIDs before the next file prove that this one is whole. Raises if they prove the opposite."""
    assert end.before is not None  # noqa: S101 - its caller has looked
    whole = together(end.before, end.own)
    if not is_open:
        whole = together(whole, end.last)
    missing = beyond(before, whole)
    if missing:
        is_cut = is_open and not beyond(missing, end.last)
        why = (
            f"its end is cut off inside the transaction {_shown(missing)}"
            if is_cut
            else f"{following.name} says that {_shown(missing)} came before it, and they are in no file before it"
        )
        raise PositionPurged(
            f"{path}: {why}. The end of {path.name} was cut off when it was copied, or a file between the two is "
            f"missing (or, on the server, GTIDs were set as executed without being logged). Copy {path.name} and all "
            f"files after it again; nothing after it was captured"
        )
    rest = beyond(whole, before)
    if isinstance(rest, DomainGtids) and isinstance(
        before, DomainGtids
    ):  # a domain may have been deleted on the server
        kept = {domain for domain, _ in before.last}
        own = {domain for gtids in (end.own, end.last) if isinstance(gtids, DomainGtids) for domain, _ in gtids.last}
        rest = DomainGtids({key: number for key, number in rest.last.items() if key[0] in kept | own})
    if rest:
        raise SourceChanged(
            f"{path}: has the transactions {_shown(rest)}, which {following.name} does not have before it: the two are "
            f"not of one history, such as after RESET MASTER or of a server that was restored. Put the files of each "
            f"history into a folder of its own"
        )
    return not end.anonymous and bool(whole)


def _unproven(path: Path, following: Path, unfinished: Literal["stop", "pass"]) -> None:
    what = (
        f"{path}: ends without naming the next file, {following.name} is there, and there are no GTIDs to show whether "
        f"anything is missing between them"
    )
    if unfinished == "pass":
        _logger.warning("a file ends without naming the next one; `unfinished_files: pass` goes on", file=str(path))
        return
    raise CorruptData(
        f"{what}. The end of the file was cut off when it was copied, or the server crashed there. Copy it again; if "
        f"it is the same on the server, set `unfinished_files: pass`"
    )


def _shown(gtids: Gtids) -> str:
    text = str(gtids)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
