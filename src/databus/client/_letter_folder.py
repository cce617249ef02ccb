"""The dead letters of a client, in a folder that all members of its group share: so they move with their partitions.

The files are those of pipelines (`databus.flow.DeadLetters`), each written by one holder of a partition. Beside them
is a small file, `client.json`: whose letters these are and, by table, up to when letters are to be replayed.
Commands write it; a client that has letters looks at it each second, and lists the folder only where it has changed.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from databus.client._parked import LOOK_S
from databus.core import ConfigError, CorruptData, InputError, LimitExceeded, Pair, TransientError
from databus.disk import Location, Storage, WriteConflict, locate
from databus.filters import matches
from databus.operate import logger_of
from databus.schema import TableSchema

if TYPE_CHECKING:
    from databus.flow import DeadLetters, Letter, LetterFile, Letters

_NOTICE: Final = "client.json"
_VERSION: Final = 1
_logger: Final = logger_of("databus.client")


@dataclass(frozen=True)
class _LettersNotice:
    """What `client.json` says."""

    name: str = ""
    """Of the client."""
    turn: int = 0
    """Rises with each command."""
    replay: Mapping[str, int] = field(default_factory=dict)
    """By full name of a table, up to when its letters are to be replayed, microseconds since 1970."""

    def dumps(self) -> bytes:
        return f"{json.dumps({'v': _VERSION, 'name': self.name, 'turn': self.turn, 'replay': self.replay})}\n".encode()

    @classmethod
    def loads(cls, content: bytes, where: object) -> "_LettersNotice":
        try:
            fields = json.loads(content)
            return cls(str(fields["name"]), int(fields["turn"]), {str(k): int(v) for k, v in fields["replay"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"{where}: cannot be read as the notice of a client's dead letters: {error!r}") from error


def letters_in(place: str | Path | Location, count_max: int = 10_000) -> "DeadLetters":
    """The letters of a folder, here or in an object store, whose keys the environment has."""
    from databus.flow import DeadLetters  # what only those need to load who have letters

    folder = place if isinstance(place, Location) else locate(str(place), Path(), Storage())
    return DeadLetters(folder, count_max=count_max)


class LetterFolder:
    """A client's letters, as they are in the folder and in memory; for all threads of the client."""

    def __init__(self, letters: "DeadLetters", name: str) -> None:
        self._letters = letters
        self._name = name
        self._lock = threading.RLock()
        self._files: dict[str, Letters] = {}
        self._names: dict[
            tuple[str, Pair], set[str]
        ] = {}  # in which files a letter is; in two where a kill came between
        self._notice = _LettersNotice()
        self._looked_at = self._counted_at = float("-inf")
        self._count = 0

    def open(self) -> None:
        """Read what there is. Raises `ConfigError` where the letters are of a client of another name."""
        with self._lock:
            self._letters.folder.make()
            file = self._letters.folder / _NOTICE
            stored = file.read()
            if stored is None:
                try:
                    file.put(_LettersNotice(self._name).dumps(), after=None)
                except WriteConflict:
                    stored = file.read()
            if stored is not None:
                self._notice = _LettersNotice.loads(stored.content, file)
            if stored is not None and self._notice.name != self._name:
                raise ConfigError(
                    f"{self._letters.folder}: has the dead letters of the client {self._notice.name!r}; this one is "
                    f"{self._name!r}, and needs a folder of its own"
                )
            self._read_again()

    @property
    def turn(self) -> int:
        """Another number wherever somebody has asked for something since."""
        return self._notice.turn

    def replayed_until(self, source: str) -> int:
        """Up to when letters of a table are to be replayed."""
        return self._notice.replay.get(source, 0)

    def look(self, *, is_urgent: bool = False) -> None:
        """Look whether somebody has asked for something, if that was not done lately. A store that does not answer is
        asked again later.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at < LOOK_S and not is_urgent:
                return
            self._looked_at = now
            file = self._letters.folder / _NOTICE
            try:
                stored = file.read()
                notice = self._notice if stored is None else _LettersNotice.loads(stored.content, file)
                if notice.turn != self._notice.turn:
                    self._read_again()
                    self._notice = notice
            except TransientError as error:
                _logger.warning("dead letters cannot be looked at now", folder=str(file.parent), error=str(error))

    def _read_again(self) -> None:
        files = self._letters.files()
        self._count, self._counted_at = sum(file.count for file in files), time.monotonic()
        for gone in self._files.keys() - {file.name for file in files}:
            self._unload(gone)
        for file in files:
            letters = None if file.name in self._files else self._letters.find(file)
            if letters is not None:
                self._load(letters)

    def _load(self, letters: "Letters") -> None:
        self._files[letters.file] = letters
        for letter in letters.letters:
            self._names.setdefault((letters.source, letter.pair), set()).add(letters.file)

    def _unload(self, name: str) -> None:
        letters = self._files.pop(name)
        for letter in letters.letters:
            places = self._names[letters.source, letter.pair]
            places.discard(name)
            if not places:
                del self._names[letters.source, letter.pair]

    def of(self, physical: str) -> "list[Letters]":
        """The letters of a physical source, in the order of their files; some may be there twice."""
        with self._lock:
            files = [letters for letters in self._files.values() if letters.physical == physical]
        return sorted(files, key=lambda letters: (letters.source, letters.letters[0].pair))

    def check_room(self, count: int) -> None:
        """Raises `LimitExceeded` where so many more are too many. Others may write meanwhile, so this is not exact."""
        with self._lock:
            if time.monotonic() - self._counted_at >= LOOK_S:
                self._count, self._counted_at = self._letters.count(), time.monotonic()
            if self._count + count > self._letters.count_max:
                raise LimitExceeded(
                    f"{self._letters.folder}: has {self._count} dead letters; with {count} more there are more than "
                    f"dead_letters_max={self._letters.count_max}: `databus dead-letters show {self._letters.folder}` "
                    f"says why. Mend what they are refused for and have them replayed, drop them, or raise the limit"
                )

    def put(
        self, writer: str, source: str, table: TableSchema, rows: pa.Table, reasons: Iterable[tuple[str, str]]
    ) -> "Letters":
        """Keep rows, durably. told: the key and the reason of each."""
        made = replace(self._letters, writer=writer).put(source, table, rows, reasons, self.now_us(source))
        with self._lock:
            self._load(made)
            self._count += len(made.letters)
        return made

    def forget(self, writer: str, source: str, pairs: Iterable[Pair]) -> None:
        """Remove letters, durably."""
        gone = set(pairs)
        self._rewrite(writer, source, gone, lambda letter: None if letter.pair in gone else letter)

    def restamp(self, writer: str, source: str, pairs: Iterable[Pair], reason: str) -> None:
        """Note why letters were refused once more: no replay that was asked for up to now is for them any longer."""
        failed = set(pairs)
        at_us = self.now_us(source)

        def stamped(letter: "Letter") -> "Letter":
            return replace(letter, reason=reason, at_us=at_us) if letter.pair in failed else letter

        self._rewrite(writer, source, failed, stamped)

    def now_us(self, source: str) -> int:
        """Now, and behind all that was asked for, whatever the clocks of machines say."""
        return max(time.time_ns() // 1000, self.replayed_until(source) + 1)

    def _rewrite(
        self, writer: str, source: str, pairs: set[Pair], becomes: "Callable[[Letter], Letter | None]"
    ) -> None:
        letters = replace(self._letters, writer=writer)
        with self._lock:
            for name in {name for pair in pairs for name in self._names.get((source, pair), ())}:
                old = self._files[name]
                left = [kept for letter in old.letters if (kept := becomes(letter)) is not None]
                new = letters.rewrite(old, left)
                self._unload(name)
                if new is not None:
                    self._load(new)
                self._count -= len(old.letters) - (0 if new is None else len(left))

    def take_back(self, letters: "Iterable[Letters]") -> None:
        """Remove files that were written too late: their partition may be another's by now."""
        with self._lock:
            for written in letters:
                (self._letters.folder / written.file).remove()
                if written.file in self._files:
                    self._unload(written.file)


class ClientLetters:
    """A client's letters, for who looks after it, whether the client runs or not. Raises `InputError` for another
    folder.
    """

    def __init__(self, place: str | Path | Location) -> None:
        self._letters = letters_in(place)
        self._notice = self._letters.folder / _NOTICE
        if not self._notice.exists():
            raise InputError(
                f"{self._letters.folder}: is no folder of a client's dead letters: it has no {_NOTICE}; name the "
                f"folder that the client is given as `dead_letters`, or an output of a pipeline"
            )
        self.name = str(self._letters.folder)

    @staticmethod
    def is_folder(path: Path) -> bool:
        """Whether a path is the folder of a client's letters."""
        return (path / _NOTICE).is_file()

    def files(self, patterns: Sequence[str] = ()) -> "list[LetterFile]":
        """Those of tables that match one of the patterns; of all tables without any."""
        return self._letters.files(lambda name: not patterns or matches(name, patterns))

    def read(self, patterns: Sequence[str] = ()) -> "Iterator[Letters]":
        """The letters themselves; without those that are forgotten meanwhile."""
        return (letters for file in self.files(patterns) if (letters := self._letters.find(file)) is not None)

    def replay(self, patterns: Sequence[str] = ()) -> int:
        """Have the client that runs, or the next one, deliver them once more; returns how many there are."""
        until: dict[str, int] = {}
        counts: Counter[str] = Counter()
        for letters in self.read(patterns):
            counts[letters.source] += len(letters.letters)
            newest = max(letter.at_us for letter in letters.letters)
            until[letters.source] = max(until.get(letters.source, 0), newest, time.time_ns() // 1000)
        if until:
            self._tell(until)
        return counts.total()

    def drop(self, patterns: Sequence[str] = ()) -> int:
        """Forget them; returns how many there were."""
        files = self.files(patterns)
        for file in files:
            self._letters.keep(file, ())
        if files:
            self._tell({})
        return sum(file.count for file in files)

    def _tell(self, until: Mapping[str, int]) -> None:
        """Write the notice. Who wrote it meanwhile is not overwritten."""
        while True:
            stored = self._notice.read()
            if stored is None:
                raise InputError(f"{self._notice}: is gone")
            notice = _LettersNotice.loads(stored.content, self._notice)
            wanted = {source: max(at_us, notice.replay.get(source, 0)) for source, at_us in until.items()}
            changed = replace(notice, turn=notice.turn + 1, replay={**notice.replay, **wanted})
            try:
                self._notice.put(changed.dumps(), after=stored.tag)
            except WriteConflict:
                continue
            return
