"""What the log of a Delta table says of commits that are not ours: rows that others changed, and restores.

A RESTORE takes rows back, and leaves the transactions that tell how far the table had come. So a table says something
wrong of its place from then on, and only its commits, or what is left of its rows, tell that.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_VERSION, CorruptData, LockHeld
from databus.disk import Location
from databus.flow import Stored
from databus.places import Held, Noted

_OURS: Final = "databus/"
"""What the ids begin with under which our commits store their pairs."""


def commit_path(table: Location, version: int) -> Location:
    """The file of a commit in a table's log."""
    return table / "_delta_log" / f"{version:020d}.json"


@dataclass(frozen=True, slots=True)
class ForeignCommits:
    """What others did to a table after a version."""

    change: str | None = None
    """The commit by which rows are not what they were, in words; None if none is such, or all was put back."""
    restore: str | None = None
    """The commit that put the table back to before the version, or to before a later commit of databus, whose rows are
    gone then while the table says that it has them; None if none did, or it was put back again."""
    databus: str | None = None
    """A commit of databus."""
    through: int = -1
    """The last version whose commit was looked at: from there on the log has a gap, or ends."""

    @classmethod
    def after(cls, table: Location, since: int) -> Self:
        """Look at the commits after `since`, as far as they are there without a gap."""
        version, last, databus = since + 1, since, None  # last: that databus has made
        found_at: dict[int, tuple[str | None, str | None]] = {since: (None, None)}  # change and restore, by version
        while (content := commit_path(table, version).read()) is not None:
            actions = _actions(content.content)
            info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
            description = f"version {version} ({info.get('operation') or 'of an unknown operation'})"
            if _is_ours(actions):
                databus, last = databus or description, version
            change, restore = found_at[version - 1]
            found_at[version] = change or (description if _is_foreign(actions) else None), restore
            if info.get("operation") == "RESTORE":
                to = (info.get("operationParameters") or {}).get("version")
                is_before = to is None or int(to) < last
                found_at[version] = (
                    (description, description)
                    if to is None or is_before
                    else found_at.get(int(to), (description, description))
                )
            version += 1
        return cls(*found_at[version - 1], databus, version - 1)


def was_put_back(table: Location, since: int, *, may_change: bool = True) -> bool:
    """Whether the table was restored to a version before `since`, after it had that one; or, unless they may,
    has changed its rows by another program, and has not put them back.

    As far as the commits after `since` are there without a gap.
    """
    commits = ForeignCommits.after(table, since)
    return (commits.restore if may_change else commits.change) is not None


def is_commit(table: Location, version: int, application: str, stored: Stored, added: Collection[str]) -> bool:
    """Whether the commit of a version is the one that stores this pair of an application, and adds these files, whose
    names no other writer gives.
    """
    content = commit_path(table, version).read()
    if content is None:
        return False
    actions = _actions(content.content)
    pairs = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    names = {action["add"]["path"] for action in actions if "add" in action}
    return (pairs.get(application), pairs.get(f"{application}/seq")) == stored.pair and names == {*added}


def _actions(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def _is_ours(actions: Sequence[dict[str, Any]]) -> bool:
    return any(action.get("txn", {}).get("appId", "").startswith(_OURS) for action in actions)


def _is_foreign(actions: Sequence[dict[str, Any]]) -> bool:
    """Whether a commit changes rows, and is not ours."""
    files = [action.get("add") or action.get("remove") or {"dataChange": False} for action in actions]
    return not _is_ours(actions) and any(file.get("dataChange", True) for file in files)


@dataclass
class SeenCommits:
    """Which commits of a table were looked at."""

    version: int = -1
    """The last one such that all up to it are ours or leave rows alone; -1 for none."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How a table was at a version."""

    version: int
    rows: int | None = None
    """How many it had."""
    newest: int | None = None
    """Their greatest `_commit_version`; each is None where its files do not say so. A RESTORE to before a batch changes
    one of the two at least; an OPTIMIZE changes none.
    """

    @classmethod
    def of(cls, version: int, actions: pa.Table) -> Self:
        """actions: the table's add-actions, flattened, as deltalake's `get_add_actions` has them."""
        if "num_records" not in actions.column_names or actions.column("num_records").null_count:
            return cls(version)
        rows = int(pc.sum(actions.column("num_records")).as_py() or 0)
        filled = actions.filter(pc.greater(actions.column("num_records"), 0))
        name = f"max.{COMMIT_VERSION}"
        if name not in filled.column_names or filled.column(name).null_count:
            return cls(version, rows, None if rows else 0)
        return cls(version, rows, int(pc.max(filled.column(name)).as_py() or 0))

    @classmethod
    def parse(cls, text: str) -> Self:
        """As `str` writes it."""
        version, *others = (None if part == "-" else int(part) for part in text.split())
        return cls(version or 0, *others[:2])

    def __str__(self) -> str:
        return " ".join("-" if value is None else str(value) for value in (self.version, self.rows, self.newest))

    def lacks(self, before: "Mark", *, is_further: bool, appends_only: bool) -> bool:
        """Whether rows are missing that were there at `before`. is_further: whether more has been written since, which
        may have taken rows of a mirror. From a history its owner may have removed old rows.
        """
        if appends_only or not is_further:
            both = None not in (self.newest, before.newest)
            if both and (self.newest or 0) < (before.newest or 0):
                return True
        is_counted = not appends_only and not is_further and None not in (self.rows, before.rows)
        return is_counted and self.rows != before.rows


def still_holds(table: Location, noted: Noted, find: Callable[[], Held | None], *, appends_only: bool) -> bool:
    """Whether a table has what was noted of it. find: opens it, and says how far it is now; called only where the
    commit of that time is no longer in its log. appends_only: whether it is a history, of which others may remove rows.
    """
    before = Mark.parse(noted.mark) if noted.mark else None
    if before is not None and was_put_back(table, before.version, may_change=appends_only):
        return False
    if before is not None and commit_path(table, before.version).exists():
        return True
    word = find()
    if word is None or word.place is None or word.place.pair < noted.pair:
        return False
    is_further = word.place.pair > noted.pair
    return before is None or not Mark.parse(word.mark).lacks(before, is_further=is_further, appends_only=appends_only)


def check_commits(
    table: Location, since: int, through: int, marks: tuple[Mark, Mark] | None, *, may_change: bool
) -> None:
    """Look at the commits after a version, up to another. Raises `CorruptData` if others have changed rows, unless
    they may, or has put the table back.

    marks: of the two versions, of a table that databus has not written between them: who does is another process, for
    which `LockHeld` is raised; and they tell what commits did that the log no longer has. None: other sources may have.
    """
    commits = ForeignCommits.after(table, since)
    if commits.databus is not None and marks is not None:
        raise LockHeld(
            f"{table}: another process writes it, also by databus, in {commits.databus}; a table has one writer. Stop "
            f"the other one, and start this pipeline again"
        )
    change = commits.restore if may_change else commits.change
    is_lost = commits.through < through
    if (
        change is None
        and is_lost
        and (marks is None or marks[1].lacks(marks[0], is_further=False, appends_only=may_change))
    ):
        change = f"version {commits.through + 1} or later, whose commits are no longer in its log"
    if change is not None:
        raise CorruptData(
            f"{table}: another program has changed its rows in {change}, and a table has one writer. Put them back "
            f"(`RESTORE TABLE ... TO VERSION AS OF {since}`) and have the output go on (`databus resume`); or have the "
            f"table rebuilt by `databus rebuild`"
        )
