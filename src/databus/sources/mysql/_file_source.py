"""Binary log files as a source: the same scanner, no server. For replay, for tests, for archives.

A folder holds one server's files, read in the order of their numbers; new ones, and bytes that are added to the last,
are followed. SCNs are file numbers and offsets. Nothing can be asked: what a table is comes from the log itself, or
from a file of definitions, and rows that were there before are not read.
"""

import datetime as dt
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

import numpy as np
import numpy.typing as npt

from databus.core import (
    ConfigError,
    CorruptData,
    Identity,
    PositionPurged,
    ServiceUnavailable,
    SourceChanged,
    UnknownSource,
    make_scn,
)
from databus.log import Resume
from databus.schema import TableSchema
from databus.sources.mysql._captured_tables import CapturedTables, TableSelection, json_form_of
from databus.sources.mysql._config import BinlogConfig
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql._kernels import load_first_kernels
from databus.sources.mysql._prepared_store import open_store
from databus.sources.mysql._rolled_back_rows import taking_back
from databus.sources.mysql._session import BinlogSession
from databus.sources.mysql._session_position import StreamPosition
from databus.sources.mysql._session_source import OmissionReport, SessionSource
from databus.sources.mysql.binlog import LogPosition, Scanner
from databus.sources.mysql.binlog import ordinal_of as ordinal_at
from databus.sources.mysql.binlog._event_types import ENCRYPTED_FILE_MAGIC, FILE_MAGIC
from databus.sources.mysql.binlog._file_order import continues
from databus.sources.mysql.binlog._position import file_number
from databus.sources.mysql.server import Flavor, bytes_behind, version_of
from databus.sources.mysql.tables import Catalogue, ServerKind, TableHistory

_NAMESPACE: Final = uuid.UUID("0b8c5a52-0f0e-4a57-8a39-7d7a6f1d1b6e")
_NUMBERED: Final = re.compile(r".+\.\d+$")
_READ_BYTES: Final = 4 << 20
_EVENT_BYTES_MAX: Final = 128 << 20  # or twice row_bytes_max, if that is more
_LOOK_S: Final = 0.05  # between two looks for more bytes
_HEAD_BYTES: Final = 4 + 4  # magic number, the time of the first event
_OTHER_FOLDER: Final = (
    "the server's log was reset (RESET MASTER), or the files are another server's. Put the files back that were "
    "captured, or capture these as another physical source"
)
_VERSION: Final = slice(4 + 19 + 2, 4 + 19 + 2 + 50)  # magic number, event header, format's version


def log_files(path: str) -> list[Path]:
    """The log files at a path, in the order of their numbers. Raises `ConfigError` if there are none."""
    place = Path(path)
    if place.is_file():
        return [place]
    files = [file for file in place.glob("*") if _NUMBERED.fullmatch(file.name) and file.is_file()]
    if not files:
        raise ConfigError(f"path: {path}: no binary log files (such as binlog.000001) are there")
    stems = {file.name.rpartition(".")[0] for file in files}
    if len(stems) > 1:
        raise ConfigError(
            f"path: {path}: files of several servers are there: {', '.join(sorted(stems))}; name a folder each"
        )
    return sorted(files, key=lambda file: file_number(file.name))


class FileFeed:
    """The bytes of files, one after the other; waits for more at the end of the last. on_file: a file begins. leave:
    whether the file is over and the first of those behind it continues it; raises what is missing.
    """

    def __init__(
        self, path: str, first: str, on_file: Callable[[str], None], leave: Callable[[Path, Sequence[Path]], bool]
    ) -> None:
        self._path = path
        self._on_file = on_file
        self._leave = leave
        self._next = first
        self._file: Any = None
        self._place = Path()
        self._head = b""  # of the file that is read: its magic number, and when it was begun
        self._waiting = threading.Event()

    def take(self, wait_s: float) -> npt.NDArray[np.uint8] | None:
        """See `LogFeed.take`."""
        deadline = time.monotonic() + wait_s
        while True:
            block = self._read()
            if block is not None:
                return block
            left_s = deadline - time.monotonic()
            # Bounded by `_LOOK_S`, since nothing signals that a file has grown.
            if left_s <= 0 or self._waiting.wait(min(left_s, _LOOK_S)):
                self._waiting.clear()
                return None

    def _read(self) -> npt.NDArray[np.uint8] | None:
        while True:
            try:
                if self._file is None:
                    path = next(file for file in log_files(self._path) if file.name == self._next)
                    self._file, self._place, self._head = path.open("rb"), path, b""
                    self._on_file(self._next)
                block = np.fromfile(self._file, np.uint8, _READ_BYTES)
                is_renewed = self._is_renewed()  # before what has been read is believed
                if len(block):
                    return block
                if is_renewed:
                    continue
                files = log_files(self._path)
                current = next(file for file in files if file.name == self._next)
                following = [file for file in files if file_number(file.name) > file_number(self._next)]
                if not following:
                    return None
                block = np.fromfile(self._file, np.uint8, _READ_BYTES)  # written before the next file was
                if len(block):
                    return block
                if not self._leave(current, following):
                    return None
            except StopIteration:
                raise PositionPurged(f"{self._path}: the file {self._next} is gone; put it back") from None
            except OSError as error:
                raise ServiceUnavailable(
                    f"{self._path}: {self._next}: {error.strerror}; capture tries again"
                ) from error
            self._file.close()
            self._file, self._next = None, following[0].name

    def _is_renewed(self) -> bool:
        """Whether a copy of the file that is read has been put in its place, as tools do that copy one that grows:
        reading goes on there, where it was. Raises if what stands there is not the file that has been read.
        """
        path, read = self._place, self._file.tell()
        self._head = self._head or head_of(self._file)
        try:
            with path.open("rb") as file:
                opened, present = os.fstat(self._file.fileno()), os.fstat(file.fileno())
                head = head_of(file)
        except FileNotFoundError:
            return False  # an error follows once the bytes of the open file are read
        if head and self._head and head != self._head:
            raise SourceChanged(
                f"{path}: was begun at {_text_of(head)}, and the file of that name that has been read at "
                f"{_text_of(self._head)}: {_OTHER_FOLDER}"
            )
        if present.st_size < read:
            raise ServiceUnavailable(
                f"{path}: has {present.st_size} bytes, and {read} have been read; perhaps it is being copied again, "
                f"and capture tries again"
            )
        if (present.st_dev, present.st_ino) == (opened.st_dev, opened.st_ino):
            return False
        self._file.close()
        self._file = path.open("rb")
        self._file.seek(read)
        return True

    def wake(self) -> None:
        """See `LogFeed.wake`."""
        self._waiting.set()

    def close(self) -> None:
        """See `LogFeed.close`."""
        if self._file is not None:
            self._file.close()
            self._file = None


class BinlogSource(SessionSource[BinlogConfig]):
    """Changes in binary log files."""

    config_model: ClassVar = BinlogConfig

    def identify(self) -> Identity:
        """See `Source.identify`. Files do not say which server they are of: the configuration's name does."""
        log_files(self._config.path)
        return Identity(str(uuid.uuid5(_NAMESPACE, self.physical)), "file-offset", self._config.path)

    def tables(self) -> Sequence[TableSchema]:
        """See `Source.tables`: those in the file of definitions; others are known once the log shows them."""
        _, tables = self._tables({}, None)
        return [tables.describe(definition) for definition in self._definitions() if tables.selects(definition)]

    def start(self, resume: Resume) -> None:
        """See `Source.start`."""
        load_first_kernels(self.physical, self._say, reads=False)
        files = log_files(self._config.path)
        keeper, tables = self._tables(resume.schemas, resume.folder)
        self._omissions = OmissionReport(self._logger, tables.omitter)
        if resume.position is None:
            position = LogPosition(files[0].name, 4)
            scn = make_scn(resume.timeline, ordinal_at(position, "file-offset"))
            place = StreamPosition(scn, 0, "", 0, position.to_json(), resume.timeline)
            keeper.use(Catalogue(is_whole=False))
            for definition in self._definitions():
                keeper.learn(definition, scn)
                tables.redefine(definition)
            keeper.begin(scn)
        else:
            position = self._checked(LogPosition.from_json(resume.position), files)
            place = StreamPosition(resume.scn, resume.seq, resume.txid, 0, resume.position, resume.timeline)
            keeper.load(resume.scn, resume.schemas, tables.describe, None)
        flavor, _ = file_server(files[0])
        prepared = open_store(self.physical, self._config, resume, resume.timeline)
        scanner = Scanner(
            flavor,
            tables.wants,
            position if resume.position is not None else None,
            scheme="file-offset",
            wants_database=tables.selection.may_select_in,
            is_file=True,
            prepared=prepared,
            event_bytes_max=max(2 * self._config.row_bytes_max, _EVENT_BYTES_MAX) + (1 << 20),
        )
        self._session = BinlogSession(
            self.physical,
            self._config,
            self._clock,
            scheme="file-offset",
            place=place,
            is_new=resume.position is None,
            feed=FileFeed(
                self._config.path,
                position.file,
                scanner.open_file,
                lambda path, following: continues(
                    path,
                    following[0],
                    is_last=len(following) == 1,
                    is_open=scanner.is_in_transaction,
                    unfinished=self._config.unfinished_files,
                ),
            ),
            scanner=scanner,
            tables=tables,
            history=keeper,
            snapshots={},
            taking_back=taking_back(self.physical, self._config, resume),
            prepared=prepared,
            reader=None,
            bytes_behind=self._bytes_behind,
        )
        self._session.begin([], None)

    def durable(self, position: Mapping[str, Any]) -> None:
        """See `Source.durable`. Files are never touched."""

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        """See `Source.request_snapshot`: there is no table to read."""
        del where
        raise UnknownSource(f"{self.physical}: binary log files hold no tables to read: {', '.join(sources)}")

    def _bytes_behind(self, file: str, offset: int) -> int | None:
        try:
            files = [(file.name, file.stat().st_size) for file in log_files(self._config.path)]
            return bytes_behind(files, file, offset)
        except (ConfigError, OSError):  # a file was just removed; reading notices that
            return None

    def _tables(self, in_force: Mapping[str, TableSchema], folder: Path | None) -> tuple[HistoryKeeper, CapturedTables]:
        flavor, version = file_server(log_files(self._config.path)[0])
        case_option = self._config.lower_case_table_names
        selection = TableSelection(self._config, fold=bool(case_option))
        history = TableHistory(
            ServerKind(flavor, version),
            selection.selects,
            fold=None if case_option is None else bool(case_option),
            explicit_timestamps=self._config.explicit_defaults_for_timestamp,
            database_charsets=self._config.database_charsets,
            zero_dates=self._config.zero_dates,
            system_zone=self._config.system_time_zone,
            tables_max=self._config.history_tables_max,
        )
        keeper = HistoryKeeper(self.physical, history, folder)
        form = json_form_of(flavor, version)
        return keeper, CapturedTables(
            self.physical,
            selection,
            self._config,
            keeper.definition,
            keeper.is_other,
            in_force,
            form,
            keeper.why_unknown,
        )

    def _definitions(self) -> list[TableDefinition]:
        if self._config.definitions is None:
            return []
        try:
            values = json.loads(Path(self._config.definitions).read_text())
            return [TableDefinition.from_json(value) for value in values]
        except OSError as error:
            raise ConfigError(f"definitions: {self._config.definitions}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"definitions: {self._config.definitions}: no list of definitions: {error!r}") from error

    def _checked(self, position: LogPosition, files: Sequence[Path]) -> LogPosition:
        if not position.file:
            raise SourceChanged(f"{self.physical}: the log's position, {position}, is none of binary log files")
        held = next((file for file in files if file.name == position.file), None)
        if held is None and files and file_number(position.file) < file_number(files[0].name):
            raise PositionPurged(f"{self.physical}: {position.file} is gone from {self._config.path}; put it back")
        if held is None or held.stat().st_size < position.offset:
            raise SourceChanged(
                f"{self.physical}: {self._config.path} does not hold {position}, which was captured from it; it is not "
                f"the folder that we knew"
            )
        with held.open("rb") as file:
            head = head_of(file)
        if position.began_s and began_s(head) != position.began_s:
            captured_at = dt.datetime.fromtimestamp(position.began_s, dt.UTC).isoformat(" ")
            raise SourceChanged(
                f"{self.physical}: {held} was begun at {_text_of(head)}, and the file of that name that was captured "
                f"at {captured_at}: {_OTHER_FOLDER}"
            )
        return position


def head_of(file: BinaryIO) -> bytes:
    """The magic number of a log file and the time of its first event; empty if that is not there yet."""
    head = os.pread(file.fileno(), _HEAD_BYTES, 0)
    return head if len(head) == _HEAD_BYTES else b""


def began_s(head: bytes) -> int:
    """When the server began the file, in seconds since 1970."""
    return int.from_bytes(head[len(FILE_MAGIC) :], "little")


def _text_of(head: bytes) -> str:
    return dt.datetime.fromtimestamp(began_s(head), dt.UTC).isoformat(" ")


def file_server(path: Path) -> tuple[Flavor, tuple[int, int, int]]:
    """Which server wrote a file.

    Raises `CorruptData` if it is no binary log, `ServiceUnavailable` if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_VERSION.stop)
    except OSError as error:
        raise ServiceUnavailable(f"{path}: {error.strerror}") from error
    if head[:4] == ENCRYPTED_FILE_MAGIC:
        raise ConfigError(f"{path}: is encrypted; it can be read through its server only")
    if head[:4] != FILE_MAGIC or len(head) < _VERSION.stop:
        raise CorruptData(f"{path}: is no binary log: it does not begin with its magic number")
    text = head[_VERSION].split(b"\0", 1)[0].decode("ascii", "replace")
    flavor: Flavor = "mariadb" if "mariadb" in text.lower() else "mysql"
    return flavor, version_of(text)
