"""Parking: what a client with `on_failure="park"` does about dead letters, for one physical source that it follows.

It takes rows of parked keys out of windows, cuts a window that failed into its changes, keeps those that fail, and says
which letters are to be delivered once more. What is parked is what the letters say (`ParkedKeys`).
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.client._batches import WindowBatch
from databus.client._consumer import AnyWindow
from databus.client._dispatcher import ConsumerFailed, Lone
from databus.client._letter_folder import LetterFolder
from databus.client._lone_window import CutWindow, LoneWindow, letter_window, lone_changes, pairs_in
from databus.client._parked import Change, ParkedKeys, RowImage, due
from databus.client._partition import Partition
from databus.client._window import Changes, ControlEvent, Window
from databus.core import CHANGE_TYPE, ChangeType, Pair, SourceCheckpoint, TransientError, crash_point
from databus.filters import begins_update, row_hashes, whole_changes
from databus.flow import Batch, Letter, Letters, TableControl, key_ids, released_below
from databus.formats import own_rows
from databus.operate import logger_of
from databus.schema import TableSchema

_logger: Final = logger_of("databus.client")
_PREIMAGE: Final = ChangeType.UPDATE_PREIMAGE.label
_POSTIMAGE: Final = ChangeType.UPDATE_POSTIMAGE.label


@dataclass(frozen=True)
class _StoredLetter:
    """A letter that is durable."""

    source: str
    table: TableSchema
    letter: Letter
    hash: int
    """Of its row's key, by which partitions are dealt."""
    key: str


@dataclass(frozen=True)
class _HeldBack:
    """Rows that are to be letters."""

    source: str
    table: TableSchema
    rows: pa.RecordBatch
    images: Sequence[RowImage]
    reasons: Sequence[str]


class ClientParking:
    """See the module's first lines. partition: of a group, whose keys it has. writer: whose files its letters are.
    in_a_row_max: how many changes may fail one after the other.
    """

    def __init__(
        self, folder: LetterFolder, physical: str, partition: Partition | None, writer: str, in_a_row_max: int
    ) -> None:
        self._in_a_row = 0  # changes that failed by themselves since one was taken
        self._in_a_row_max = in_a_row_max
        self._has_delivered = False  # whether rows were delivered since then, and are not saved
        self._folder = folder
        self._physical = physical
        self._partition = partition
        self._writer = writer
        self._key_of: dict[str, tuple[str, ...]] = {}  # by table, the columns by which its rows are told apart now
        self._held: list[_HeldBack] = []
        self._asked: deque[Sequence[_StoredLetter]] = deque()
        self._blocked: set[tuple[str, str]] = set()
        self.reload()

    # the letters

    def reload(self) -> None:
        """Have parked what the folder says, and what is to be written yet."""
        self._keys = ParkedKeys()
        self._stored: dict[tuple[str, Pair], _StoredLetter] = {}
        self._overtaken: dict[str, set[Pair]] = {}
        self._turn = self._folder.turn
        self._is_planned = False
        by_table = groupby(self._folder.of(self._physical), lambda file: (file.source, file.table))
        for (source, table), files in by_table:
            self._store(source, table, [letter for file in files for letter in file.letters])
        for held in self._held:
            for image in held.images:
                self._keys.park(held.source, image)

    def _store(self, source: str, table: TableSchema, letters: Sequence[Letter]) -> None:
        names = self._key_of.setdefault(source, table.key)
        is_other = names != table.key and set(names) <= set(table.names)
        rows = _rows_of(table, letters) if is_other or self._is_one_of_many else None
        keys = _keys_of(rows, names) if rows is not None and is_other else [letter.id for letter in letters]
        hashes = [0] * len(letters) if rows is None else row_hashes(table, rows).tolist()
        for letter, key, key_hash in zip(letters, keys, hashes, strict=True):
            self._stored[source, letter.pair] = _StoredLetter(source, table, letter, key_hash, key)
            self._keys.park(source, RowImage(key, letter.pair))

    @property
    def _is_one_of_many(self) -> bool:
        return self._partition is not None and self._partition.of > 1

    def _is_mine(self, stored: _StoredLetter) -> bool:
        partition = self._partition
        return partition is None or stored.hash % partition.of == int(partition)

    @property
    def count(self) -> int:
        """How many letters there are of its keys."""
        return sum(map(self._is_mine, list(self._stored.values())))

    @property
    def has_letters(self) -> bool:
        """Whether there is any letter that may be asked for."""
        return bool(self._stored)

    @property
    def is_unwritten(self) -> bool:
        """Whether something is to be written before the place passes it."""
        return bool(self._held)

    def roll_back(self) -> None:
        """What was held back and is not written comes again."""
        self._held.clear()
        self._has_delivered = False
        self.reload()

    # windows

    def cut(self, window: AnyWindow, saved: SourceCheckpoint) -> AnyWindow:
        """A window without the rows that are held back; the same one where there are none. saved: up to where all is
        done whatever happens.
        """
        if not isinstance(window, WindowBatch):
            return self._cut(window, saved)
        windows = [self._cut(part, saved) for part in window.windows]
        is_same = all(cut is whole for cut, whole in zip(windows, window.windows, strict=True))
        return window if is_same else WindowBatch(windows)

    def _cut(self, window: Window, saved: SourceCheckpoint) -> Window:
        if window.control is not None:
            self.overtake(window.control, saved)
        if not (self._stored or self._held):
            return window
        kept = [(piece, self._left(piece)) for piece in window.changes()]
        if all(len(piece) == len(left) for piece, left in kept):
            return window
        return CutWindow(window, [cut for cut in kept if len(cut[1])], has_control=window.has_control)

    def _left(self, piece: Changes) -> pa.RecordBatch:
        """The rows of a piece that are not held back."""
        batch = piece.batch
        changes = self._known(piece)
        if changes:
            self._folder.look(is_urgent=True)  # whoever dropped letters is to find their keys parked no longer
            if self._folder.turn != self._turn:
                self.reload()
                changes = self._known(piece)
        if not changes:
            return batch
        held = self._keys.held(piece.source, [change for _, change in changes])
        is_left = [True] * len(batch)
        for number, letter in held:
            start, change = changes[number]
            is_left[start : start + len(change)] = [False] * len(change)
            self._hold(piece, start, change, f"behind {letter[0]}/{letter[1]} of its key, which was refused")
        return batch.filter(pa.array(is_left)) if held else batch

    def _known(self, piece: Changes) -> list[tuple[int, Change]]:
        """The changes of a piece, each with its first row; none where no key of theirs is parked."""
        source, names = piece.source, piece.table.key
        if self._key_of.get(source, names) != names:
            self._key_of[source] = names
            self.reload()
        known = list(self._keys.keys_of(source))
        if not known:
            return []
        batch = piece.batch
        if names:
            ids = key_ids([batch.column(name) for name in names])
            if not pc.any(pc.is_in(ids, pa.array(known, ids.type))).as_py():
                return []
        return _changes_of(batch, names)

    def _hold(self, piece: Changes, start: int, change: Change, reason: str) -> None:
        """Have a change become letters, but for what is one already."""
        new = [
            (start + offset, image)
            for offset, image in enumerate(change)
            if (piece.source, image.pair) not in self._stored
        ]
        if new:
            rows = piece.batch.take(pa.array([row for row, _ in new]))
            images = [image for _, image in new]
            self._held.append(_HeldBack(piece.source, piece.table, rows, images, [reason] * len(new)))

    def overtake(self, control: ControlEvent, saved: SourceCheckpoint) -> None:
        """Forget the letters that a control says are over: no row of theirs is there now. See `forget_overtaken`."""
        event = TableControl(control.table, control.kind, control.pair, control.body)
        below = released_below(Batch(self._physical, saved, saved, ()), event)
        if below is None:
            return
        for stored in [stored for stored in self._stored.values() if stored.source == control.source]:
            if stored.letter.pair < below and control.covers(stored.hash):
                self._forget(stored)
                self._overtaken.setdefault(stored.source, set()).add(stored.letter.pair)

    def forget_overtaken(self) -> None:
        """Remove what is over, when a place behind it is about to be saved. Not later: a letter that is left would be
        replayed behind the control. Not before: what follows of its key would be delivered without it after a rollback.
        """
        for source, pairs in self._overtaken.items():
            self._folder.forget(self._writer, source, pairs)
        self._overtaken = {}

    def _forget(self, stored: _StoredLetter) -> None:
        del self._stored[stored.source, stored.letter.pair]
        self._keys.release(stored.source, RowImage(stored.key, stored.letter.pair))

    def write(self) -> list[Letters]:
        """Have durable what was held back; returns what was written. Each key has files of its own, so that no two
        holders of partitions ever change one. Raises `LimitExceeded`, and writes nothing.
        """
        crash_point("parking.before_write")
        self._folder.check_room(sum(len(held.rows) for held in self._held))
        made = []
        for held in self._held:
            by_key: dict[str, list[int]] = {}
            for number, image in enumerate(held.images):
                by_key.setdefault(image.key, []).append(number)
            for key, numbers in by_key.items():
                rows = pa.Table.from_batches([held.rows.take(pa.array(numbers))])
                reasons = [(key, held.reasons[number]) for number in numbers]
                made.append(self._folder.put(self._writer, held.source, held.table, rows, reasons))
        self._held.clear()
        for file in made:
            self._store(file.source, file.table, file.letters)
            _logger.warning(
                "rows were refused, and are dead letters",
                source=file.source,
                key=file.letters[0].id,
                pair=file.letters[0].pair,
                rows=len(file.letters),
                reason=file.letters[0].reason,
            )
        crash_point("parking.after_write")
        return made

    def take_back(self, made: Iterable[Letters]) -> None:
        """What was written came too late: the partition may be another's."""
        self._folder.take_back(made)
        self.roll_back()

    # one by one

    def apart(self, window: Window, place: SourceCheckpoint) -> list[Window]:
        """A window that failed, change by change."""
        changes = ((piece, *span) for piece in window.changes() for span in _spans(piece.batch))
        return lone_changes(window, place, changes)

    def holds(self, window: LoneWindow) -> bool:
        """Whether a change is held back: something before it of its key is a letter. Then it is one too."""
        return not window.is_letter and window.control is None and len(self._left(window.only)) == 0

    def note(self, window: LoneWindow, outcome: Lone | BaseException, saved: SourceCheckpoint) -> ConsumerFailed | None:
        """What became of it; the error where so many have failed that their target must be to blame."""
        if window.is_letter:
            self._note_letter(window, outcome)
        elif isinstance(outcome, BaseException):
            return self._refuse(window, outcome)
        elif window.control is not None:
            self.overtake(window.control, saved)
        elif outcome is Lone.TAKEN:
            self._in_a_row = 0
        return None

    def note_window(self, window: AnyWindow) -> None:
        """A window has been delivered."""
        self._has_delivered |= len(window) > 0 and not window.is_replayed

    def note_saved(self) -> None:
        """What was delivered is safe."""
        if self._has_delivered:
            self._in_a_row, self._has_delivered = 0, False

    def _refuse(self, window: LoneWindow, error: BaseException) -> ConsumerFailed | None:
        self._in_a_row += 1
        self._has_delivered = False
        piece = window.only
        ((start, change),) = _changes_of(piece.batch, piece.table.key)
        self._key_of.setdefault(piece.source, piece.table.key)
        for image in change:
            self._keys.park(piece.source, image)
        self._hold(piece, start, change, _text_of(error))
        if self._in_a_row <= self._in_a_row_max:
            return None
        failed = ConsumerFailed(
            f"{self._physical}: {self._in_a_row} changes in a row have failed by themselves, more than "
            f"refused_in_a_row_max={self._in_a_row_max}, last at SCN {window.scn}: {_text_of(error)}. The target seems "
            f"to be out of order; this transaction comes again when the client is started again"
        )
        failed.__cause__ = error
        return failed

    def _note_letter(self, window: LoneWindow, outcome: Lone | BaseException) -> None:
        piece = window.only
        pairs = pairs_in(piece.batch)
        try:
            if outcome is Lone.TAKEN:
                crash_point("parking.before_removal")
                self._folder.forget(self._writer, piece.source, pairs)
                for stored in self._stored_of(piece):
                    self._forget(stored)
                _logger.info("a dead letter was replayed", source=piece.source, pair=pairs[-1])
            elif outcome is not Lone.NONE:  # else the lease is over, and it is the next holder's
                why = _text_of(outcome) if isinstance(outcome, BaseException) else "on_checkpoint puts it off"
                self._blocked |= {(stored.source, stored.key) for stored in self._stored_of(piece)}
                self._folder.restamp(self._writer, piece.source, pairs, why)
                _logger.warning("a dead letter has failed again, and stays", source=piece.source, pair=pairs[-1])
        except TransientError as error:  # it stays, and its key is parked
            _logger.warning("a dead letter cannot be changed now", source=piece.source, error=str(error))

    def _stored_of(self, piece: Changes) -> list[_StoredLetter]:
        there = (self._stored.get((piece.source, pair)) for pair in pairs_in(piece.batch))
        return [stored for stored in there if stored is not None]

    def next_letter(self, place: SourceCheckpoint) -> LoneWindow | None:
        """The next letter that somebody wants delivered once more. place: where the consumer stands."""
        if not self._stored:
            return None
        self._folder.look()
        if self._folder.turn != self._turn:
            self.reload()
        if not self._is_planned:
            self._asked, self._blocked, self._is_planned = deque(self._asked_for()), set(), True
        # a letter that the place has not passed was written before a crash: its transaction comes again, and first
        while self._asked and self._asked[0][-1].letter.pair <= place.pair:
            letters = self._asked.popleft()
            keys = {(stored.source, stored.key) for stored in letters if stored.key}
            if not keys & self._blocked and all(
                (stored.source, stored.letter.pair) in self._stored for stored in letters
            ):
                rows = whole_changes(_rows_of(letters[0].table, [stored.letter for stored in letters]))
                return letter_window(letters[0].source, letters[0].table, rows, place)
            self._blocked |= keys
        return None

    def _asked_for(self) -> list[Sequence[_StoredLetter]]:
        """The letters that were asked for, change by change, in the order of their pairs."""
        mine = sorted(
            filter(self._is_mine, self._stored.values()), key=lambda stored: (stored.source, stored.letter.pair)
        )
        asked: list[Sequence[_StoredLetter]] = []
        for source, of_table in groupby(mine, lambda stored: stored.source):
            until = self._folder.replayed_until(source)
            changes = _joined(of_table)
            keys = [{stored.key for stored in change if stored.key} for change in changes]
            is_wanted = [all(stored.letter.at_us <= until for stored in change) for change in changes]
            asked += [changes[number] for number in due(keys, is_wanted)]
        return sorted(asked, key=lambda change: change[-1].letter.pair)


def _joined(letters: Iterable[_StoredLetter]) -> list[list[_StoredLetter]]:
    """Letters of a table in order, both images of an update together."""
    changes: list[list[_StoredLetter]] = []
    for stored in letters:
        scn, seq = stored.letter.pair
        before = changes[-1][-1] if changes else None
        is_second = (
            before is not None
            and before.letter.pair == (scn, seq - 1)
            and before.table == stored.table
            and (_kind_of(before.letter), _kind_of(stored.letter)) == (_PREIMAGE, _POSTIMAGE)
        )
        if is_second:
            changes[-1].append(stored)
        else:
            changes.append([stored])
    return changes


def _kind_of(letter: Letter) -> str:
    return str(json.loads(letter.row)[CHANGE_TYPE])


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _rows_of(table: TableSchema, letters: Iterable[Letter]) -> pa.RecordBatch:
    """Letters as rows of a frame."""
    return own_rows(table, pa.array([letter.row.encode() for letter in letters], pa.large_binary())).rows


def _keys_of(batch: pa.RecordBatch, names: Sequence[str]) -> list[str]:
    """What rows are called by these columns; nothing where there are none."""
    if not names:
        return [""] * len(batch)
    keys: list[str] = key_ids([batch.column(name) for name in names]).to_pylist()
    return keys


def _changes_of(batch: pa.RecordBatch, names: Sequence[str]) -> list[tuple[int, Change]]:
    """The changes of rows, each with the number of its first row."""
    images = list(map(RowImage, _keys_of(batch, names), pairs_in(batch)))
    return [(start, images[start:stop]) for start, stop in _spans(batch)]


def _spans(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Between which rows the changes of a batch stand."""
    begins = begins_update(batch).tolist()
    row = 0
    while row < len(begins):
        stop = row + 1 + begins[row]
        yield row, stop
        row = stop
