"""Keys that are parked: what follows a refused row of its key becomes a dead letter too, so that changes of a key reach
a target that takes changes, and no images, in their order.

What is parked is what the letters say: a key of which there is one, from that letter's pair on. Both rows of an update
stand or fall together, so that a changed key parks both. A truncation, a drop and a whole snapshot release what was
refused before. Rows of a table without a key are letters each by itself.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import Pair
from databus.flow._batch import ChangeBatch, TableControl, TableRows
from databus.flow._letters import DeadLetters, Letter, Letters, released_below
from databus.flow._lines import as_captured
from databus.flow._pairs import Int, RowMask, before_updates, pairs_of
from databus.flow._table_filters import KeyChoice
from databus.formats import base64url_texts
from databus.schema import TableSchema, key_bytes

_ID_BYTES_MAX: Final = 512  # an index takes no longer `_id`; a longer one becomes a hash
_HASHED: Final = "sha256:"


def key_ids(columns: Sequence[pa.Array]) -> pa.LargeStringArray:
    """The id of each row, of the columns of its key: equal keys have equal ids, and others have others.

    A key of one integer is its digits, one of one text that text; any other is its canonical bytes in base64url. What
    is no id, since it is empty, null, or longer than 512 bytes, is `sha256:` and a digest.
    """
    kind = columns[0].type
    is_text = len(columns) == 1 and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if is_text or (len(columns) == 1 and pa.types.is_integer(kind)):
        texts = columns[0].cast(pa.large_string())
    else:
        texts = base64url_texts(key_bytes(columns))
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    is_other = (lengths == 0) | (lengths > _ID_BYTES_MAX)
    if is_text:
        is_other |= pc.fill_null(pc.starts_with(texts, _HASHED), True).to_numpy(zero_copy_only=False)
    if not is_other.any():
        return texts
    mask = pa.array(is_other)
    return pc.replace_with_mask(texts, mask, pa.array(map(_hashed, texts.filter(mask).to_pylist()), pa.large_string()))


def _hashed(text: str | None) -> str:
    return f"{_HASHED}{'null' if text is None else sha256(text.encode()).hexdigest()}"


class Parking:
    """Which rows of a batch are held back. Items are named by their numbers in the batch, rows by theirs in the item.

    replayed: letters that are being written once more, and so park nothing, and are no more than there were. keyless: a
    column; rows without a value in it have no key. Letters are called by the key of now, whichever it was then; by the
    one of then where their table lacked a column of it.
    """

    def __init__(
        self,
        letters: DeadLetters,
        key: KeyChoice,
        batch: ChangeBatch,
        replayed: Letters | None = None,
        keyless: str | None = None,
    ) -> None:
        self._letters = letters
        self._key = key
        self._keyless = keyless
        self._batch = batch
        self._room = None if replayed is None else len(replayed.letters)
        self._replayed = replayed
        self._tables: dict[str, _Rows] = {}
        sources = {item.table.source for item in batch.items if isinstance(item, TableRows)}
        names = {f"{batch.physical}/{source}": source for source in sources}
        given = () if replayed is None else {(letter.id, letter.pair) for letter in replayed.letters}
        for name, groups in letters.by_source(names.__contains__).items() if names else ():
            source = names[name]
            known = [
                replace(letter, id=called or "")
                for group in groups
                for letter, called in zip(group.letters, self._called(source, group), strict=True)
                if (letter.id, letter.pair) not in given
            ]
            if known:
                self._tables[source] = self._rows_of(source, known)

    def holds(self, items: Int, rows: Int) -> RowMask:
        """Which of these rows are held back; a row of no item is not."""
        held = np.zeros(len(items), np.bool_)
        for table in self._tables.values():
            for number, start in table.starts.items():
                mine = items == number
                held[mine] = table.is_held[start + rows[mine]]
        return held

    def refuse(self, number: int, row: int, why: str) -> None:
        """Hold a row back, and what follows of its key. Raises `LimitExceeded` where there are too many letters; all
        that are held back are durable then.
        """
        source = self._batch.items[number].table.source
        if source not in self._tables:
            self._tables[source] = self._rows_of(source, ())
        if self._room is None:
            self._room = self._letters.count_max - self._letters.count()
        if self._room < 0:
            raise self._letters.too_many(self._letters.count())
        table = self._tables[source]
        table.hold(table.starts[number] + row, why)
        if sum(table.new_count for table in self._tables.values()) > self._room:
            self.put()
            raise self._letters.too_many(self._letters.count())

    def held(self, number: int) -> list[tuple[int, str]]:
        """The rows of an item that are held back, each with the reason, in order."""
        table = self._tables.get(self._batch.items[number].table.source)
        return [] if table is None else table.held(number)

    def put(self) -> None:
        """Have a durable letter for each row that is held back."""
        for source, table in self._tables.items():
            for number in table.starts:
                rows_held = [(row, why) for row, why in table.held(number) if not table.is_letter(number, row)]
                item = self._batch.items[number]
                if rows_held and isinstance(item, TableRows):
                    reasons = [(table.id(number, row), why) for row, why in rows_held]
                    rows = item.rows.take([row for row, _ in rows_held])
                    self._letters.put(f"{self._batch.physical}/{source}", item.table, rows, reasons)

    def release(self) -> None:
        """Forget letters that controls of the batch have overtaken: before a reader has those, so that no replay puts
        a letter behind newer rows.
        """
        for item in self._batch.items:
            below = released_below(self._batch, item) if isinstance(item, TableControl) else None
            if below is not None:
                self._letters.release(f"{self._batch.physical}/{item.table.source}", below)

    def _rows_of(self, source: str, letters: Sequence[Letter]) -> "_Rows":
        items = {
            number: item
            for number, item in enumerate(self._batch.items)
            if isinstance(item, TableRows) and item.table.source == source
        }
        releases = []
        for control in self._batch.items:
            if isinstance(control, TableControl) and control.table.source == source:
                below = released_below(self._batch, control)
                releases += [] if below is None else [(control.pair, below)]
        if self._replayed is not None:
            ids = [pa.array(self._called(source, self._replayed), pa.large_string())]
        else:
            ids = [_ids(item, self._key_in(source, item.table), self._keyless) for item in items.values()]
        return _Rows(items, ids, releases, letters)

    def _key_in(self, source: str, table: TableSchema) -> Sequence[str]:
        """The columns by which rows of a table in this definition are told apart: those of now, where it has them."""
        now = [item.table for item in self._batch.items if item.table.source == source][-1]
        key = tuple(self._key.of(source)) or now.key
        return key if set(key) <= set(table.names) else table.key

    def _called(self, source: str, letters: Letters) -> list[str | None]:
        """What letters are called; None for those of rows without a key."""
        key = self._key_in(source, letters.table)
        has_all = key and set(key) <= set(letters.table.names)
        if not has_all or (self._keyless is not None and self._keyless not in letters.table.names):
            return [letter.id or None for letter in letters.letters]
        ids: list[str | None] = _ids(TableRows(letters.table, letters.rows()), key, self._keyless).to_pylist()
        return ids


class _Rows:
    """The rows of one table in a batch, side by side. starts: where those of each item begin. names: what the rows of
    each item are called. releases: at which pairs letters from below which were released. new_count: how many rows that
    are held back are no letters yet.
    """

    def __init__(
        self,
        items: Mapping[int, TableRows],
        names: Sequence[pa.Array],
        releases: Sequence[tuple[Pair, Pair]],
        letters: Sequence[Letter],
    ) -> None:
        ends = np.cumsum([0, *(item.rows.num_rows for item in items.values())])
        self.starts = dict(zip(items, ends.tolist(), strict=False))
        self.is_held = np.zeros(ends[-1], np.bool_)
        self.new_count = 0
        self._why: dict[int, str] = {}
        self._releases = releases
        pairs = [pairs_of(item.rows) for item in items.values()]
        self._scns, self._seqs = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        self._is_followed = np.concatenate([before_updates(item.rows)[1] for item in items.values()])
        ids = pa.concat_arrays(names).dictionary_encode()
        self._names: pa.Array = ids.dictionary
        self._codes: Int = pc.fill_null(ids.indices, -1).to_numpy(zero_copy_only=False)
        self._order = np.argsort(self._codes, kind="stable")
        self._sorted = self._codes[self._order]
        self._letters: dict[int, list[Pair]] = {}  # by key, in order
        self._is_letter: set[tuple[int, Pair]] = set()
        codes = pc.index_in(pa.array([letter.id for letter in letters], pa.large_string()), self._names)
        for code, letter in zip(codes.to_pylist(), letters, strict=True):
            if code is not None:
                self._is_letter.add((code, letter.pair))
                self._note(code, letter.pair)
        self._follow(set(self._letters))

    def hold(self, row: int, why: str) -> None:
        """Hold a row back, and what follows of its key."""
        self._follow(self._hold(row, why))

    def held(self, number: int) -> list[tuple[int, str]]:
        """See `Parking.held`."""
        start, end = self._span(number)
        return [(row, self._why[start + row]) for row in np.flatnonzero(self.is_held[start:end]).tolist()]

    def is_letter(self, number: int, row: int) -> bool:
        """Whether a row is one already."""
        place = self.starts[number] + row
        return (int(self._codes[place]), self._pair(place)) in self._is_letter

    def id(self, number: int, row: int) -> str:
        """What a row is called; nothing where its table has no key."""
        code = int(self._codes[self.starts[number] + row])
        return "" if code < 0 else str(self._names[code].as_py())

    def _span(self, number: int) -> tuple[int, int]:
        start = self.starts[number]
        return start, min((other for other in self.starts.values() if other > start), default=len(self.is_held))

    def _pair(self, place: int) -> Pair:
        return int(self._scns[place]), int(self._seqs[place])

    def _hold(self, place: int, why: str) -> set[int]:
        """Hold a change back; returns the keys that it parks."""
        first = place - 1 if place and self._is_followed[place - 1] else place
        parked = set()
        for number in range(first, first + 1 + int(self._is_followed[first])):
            code = int(self._codes[number])
            if not self.is_held[number]:
                self.is_held[number] = True
                self._why[number] = why
                self.new_count += (code, self._pair(number)) not in self._is_letter
            if code >= 0 and self._note(code, self._pair(number)):
                parked.add(code)
        return parked

    def _note(self, code: int, pair: Pair) -> bool:
        letters = self._letters.setdefault(code, [])
        at = bisect_left(letters, pair)
        if at < len(letters) and letters[at] == pair:
            return False
        letters.insert(at, pair)
        return True

    def _follow(self, parked: set[int]) -> None:
        """Hold back what is behind letters of these keys, and of those that are parked by it."""
        while parked:
            code = parked.pop()
            for place in self._places(code):
                behind = None if self.is_held[place] else self._behind(code, self._pair(place))
                if behind is not None:
                    why = f"behind {behind[0]}/{behind[1]} of its key, which was refused"
                    parked |= self._hold(place, why) - {code}

    def _places(self, code: int) -> Iterator[int]:
        begin, end = np.searchsorted(self._sorted, [code, code + 1])
        yield from self._order[begin:end].tolist()

    def _behind(self, code: int, pair: Pair) -> Pair | None:
        """The letter of a key that a row comes behind, or is itself; None where there is none any more."""
        letters = self._letters[code]
        at = bisect_right(letters, pair)
        if not at or any(letters[at - 1] < below and when <= pair for when, below in self._releases):
            return None
        return letters[at - 1]


def _ids(item: TableRows, names: Sequence[str], keyless: str | None) -> pa.Array:
    """What the rows of an item are called by these columns; null where there is none, or a row has no key."""
    if not names:
        return pa.nulls(item.rows.num_rows, pa.large_string())
    rows = as_captured(item.table, item.rows)
    batch = rows.combine_chunks().to_batches(max_chunksize=max(rows.num_rows, 1))[0]
    ids = key_ids([batch.column(name) for name in names])
    return ids if keyless is None else pc.if_else(batch.column(keyless).is_valid(), ids, pa.scalar(None, ids.type))
