"""Where files are: a path on a disk of this machine, or a URI in an object store. Start with `Location`, then `locate`.

Outputs and their ledgers know files by this alone, so none of them asks where it is.
"""

import os
import re
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from databus.core import ConfigError, DatabusError, InputError, ServiceUnavailable
from databus.disk._files import disk_full, is_no_room, make_folder, replace_file, replacing, sync_folder, write_failure
from databus.disk._lock import turn_of_writer

_SYSTEM_ERROR: Final = re.compile(r"\(os error (\d+)\)")


class WriteConflict(Exception):
    """The file is not the one that was read: somebody else has written it, or removed it."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """What a file holds."""

    content: bytes
    tag: str
    """Tag of this version of the file; see `Location.put`."""


class Location(ABC):
    """A file or a folder, which need not be there. `str` tells people where; it holds no secret.

    All that reads or writes raises `ServiceUnavailable` where another try may help, `DiskFull` for want of room, and
    `InputError` otherwise, such as `AccessDenied`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its path."""

    @property
    @abstractmethod
    def parent(self) -> "Location":
        """The folder that it is in."""

    @abstractmethod
    def __truediv__(self, name: str) -> "Location":
        """What is called `name` in this folder; of more parts than one, what is below."""

    @property
    def engine_uri(self) -> str:
        """As Delta's engine takes it."""
        return str(self)

    @property
    def engine_options(self) -> dict[str, str] | None:
        """Options that Delta's engine needs beside that; secrets are among them."""
        return None

    @property
    def arrow_files(self) -> Any:
        """Arrow's own file system over this folder, where there is a better one than the engine's; else None."""
        return None

    @abstractmethod
    def read(self) -> FileContent | None:
        """The file's content; None if there is none. A local one may raise any OSError too."""

    @abstractmethod
    def put(self, content: bytes, *, after: str | None) -> str:
        """Write the file, whole and durably, if it still is the version of the tag `after` (None: if it is not there);
        returns the new tag. Raises `WriteConflict` otherwise.
        """

    def check_conditions(self) -> None:  # noqa: B027 - a disk has none to keep
        """Of a file that is there: whether `put` can be relied on. Raises `ConfigError` where it cannot."""

    @abstractmethod
    def write(self, content: bytes) -> None:
        """Write the file, whole and durably, whatever is there."""

    @abstractmethod
    def writing(
        self, before_visible: Callable[[], None] | None = None, *, durable: bool = True
    ) -> AbstractContextManager[BinaryIO]:
        """A file to write, of any size, that is there whole in the end or, after an error, not at all.

        durable: whether it outlives the machine's power, where that can be chosen.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Any]:
        """The file for Arrow to read, wherever in it, and to map where it can. Raises FileNotFoundError too."""

    @abstractmethod
    def give_name(self, name: str) -> None:
        """Give the file another name in its folder, durably, in the place of what has that name.

        Raises `ServiceUnavailable` if it is gone: it can be written again. In a store it is there twice for a moment.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Whether the file is there."""

    @abstractmethod
    def names(self) -> list[str]:
        """Of files and folders in this folder; none if it is not there."""

    @abstractmethod
    def make(self) -> None:
        """Make it a folder, where there are folders."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the file, if it is there."""

    @abstractmethod
    def remove_folder(self) -> None:
        """Remove the folder with all that is in it, if it is there."""

    def remove_half_written(  # noqa: B027 - a store shows nothing half-written
        self, is_mine: Callable[[str], bool], *, older_than_s: float
    ) -> None:
        """Remove from this folder what a kill has left of files that were being written, and that have not changed for
        so long. is_mine: of the names that they were to get.
        """

    def check(self) -> None:  # noqa: B027 - a disk answers
        """Whether the place answers and may be read: raises what says why not."""

    @abstractmethod
    def trouble(self, error: Exception) -> DatabusError | None:
        """What an error of Delta's engine about this folder is, if it is the disk's or the store's and not the table's:
        no room, no answer, no permission.
        """


def _half_name(name: str) -> str:
    return f".{name}.partial"


def finished_name(name: str) -> str:
    """The name of a file that may be half-written yet, when it is whole.

    >>> finished_name(".rows.parquet.partial"), finished_name("rows.parquet")
    ('rows.parquet', 'rows.parquet')
    """
    return name[1:].removesuffix(".partial") if name.startswith(".") and name.endswith(".partial") else name


@dataclass(frozen=True, slots=True)
class LocalLocation(Location):
    """On a disk of this machine. It is a path for everybody who takes one."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """See `Location.name`."""
        return self.path.name

    @property
    def parent(self) -> "LocalLocation":
        """See `Location.parent`."""
        return LocalLocation(self.path.parent)

    def __truediv__(self, name: str) -> "LocalLocation":
        return LocalLocation(self.path / name)

    @property
    def arrow_files(self) -> Any:
        """See `Location.arrow_files`. Threads of a dataset over the engine's, which calls back into Python, may still
        run when the interpreter ends, and abort the process.
        """
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        return SubTreeFileSystem(str(self.path.absolute()), LocalFileSystem())

    def read(self) -> FileContent | None:
        """See `Location.read`."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise ConfigError(f"{self.path.parent}: is not a folder to write to: {error.strerror}") from error
        return FileContent(content, _tag_of(content))

    def put(self, content: bytes, *, after: str | None) -> str:
        """See `Location.put`."""
        make_folder(self.path.parent)
        with turn_of_writer(self.path.parent):
            version = self.read()
            if (None if version is None else version.tag) != after:
                raise WriteConflict
            self.write(content)
        return _tag_of(content)

    def write(self, content: bytes) -> None:
        """See `Location.write`."""
        make_folder(self.path.parent)
        replace_file(self.path, [content], durable=True)

    @contextmanager
    def writing(self, before_visible: Callable[[], None] | None = None, *, durable: bool = True) -> Iterator[BinaryIO]:
        """See `Location.writing`. Until then it is beside, as `.NAME.partial`, in its folder, which is made."""
        make_folder(self.path.parent)
        beside = self.path.with_name(_half_name(self.path.name))
        try:
            with replacing(self.path, durable=durable, beside=beside, before_rename=before_visible) as file:
                yield file
        except ServiceUnavailable as error:
            raise InputError(f"{self.path}: could not be written: {error.__cause__}") from error

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """See `Location.reading`."""
        import pyarrow as pa

        with pa.memory_map(str(self.path)) as file:
            yield file

    def give_name(self, name: str) -> None:
        """See `Location.give_name`."""
        try:
            self.path.rename(self.path.with_name(name))
            sync_folder(self.path.parent)
        except FileNotFoundError:
            raise gone(self) from None
        except OSError as error:
            raise write_failure(self.path, error) from error

    def exists(self) -> bool:
        """See `Location.exists`."""
        return self.path.exists()

    def names(self) -> list[str]:
        """See `Location.names`."""
        try:
            return [entry.name for entry in self.path.iterdir()] if self.path.exists() else []
        except OSError as error:
            raise InputError(f"{self.path}: is not a folder to read: {error}") from error

    def make(self) -> None:
        """See `Location.make`. What was left half-written in it is removed."""
        try:
            make_folder(self.path)
            for left in self.path.glob(_half_name("*")):
                left.unlink(missing_ok=True)
        except (ConfigError, OSError) as error:
            raise InputError(f"{self.path}: is not a folder to write to: {error}") from error

    def remove(self) -> None:
        """See `Location.remove`."""
        self.path.unlink(missing_ok=True)

    def remove_folder(self) -> None:
        """See `Location.remove_folder`."""
        try:
            shutil.rmtree(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{self.path}: could not be removed: {error}") from error

    def remove_half_written(self, is_mine: Callable[[str], bool], *, older_than_s: float) -> None:
        """See `Location.remove_half_written`."""
        before_s = time.time() - older_than_s
        for left in self.path.glob(_half_name("*")):
            if is_mine(finished_name(left.name)):
                with suppress(FileNotFoundError):
                    if left.stat().st_mtime < before_s:
                        left.unlink()

    def trouble(self, error: Exception) -> DatabusError | None:
        """See `Location.trouble`: the system's error behind one of the engine's, whose text ends as Rust names it."""
        match = _SYSTEM_ERROR.search(str(error))
        cause = None if match is None else OSError(int(match[1]), os.strerror(int(match[1])))
        return disk_full(self.path, cause) if cause is not None and is_no_room(cause) else None


def gone(path: Location) -> ServiceUnavailable:
    """The error of a file that should be there for a moment more."""
    return ServiceUnavailable(f"{path}: is gone before it was committed; it is written again")


def _tag_of(content: bytes) -> str:
    return sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class Storage:
    """Options of object stores: by scheme (`s3`), or by scheme and bucket (`s3://lake`), which come first.

    Secrets are among them, so nothing shows them.
    """

    by_place: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def of(self, place: str) -> Mapping[str, str]:
        """Those of `scheme://bucket`."""
        return self.by_place.get(place) or self.by_place.get(place.partition(":")[0]) or {}


def locate(path: str, folder: Path, storage: Storage) -> Location:
    """What a path or a URI names. folder: where relative paths start.

    Raises `ConfigError` for a URI that names nothing.
    """
    from databus.disk._object_store import StoreLocation, is_uri

    if is_uri(path):
        return StoreLocation.of(path, storage)
    if path.startswith("file:"):
        path = path.removeprefix("file:").removeprefix("//")
        if not path.startswith("/"):
            raise ConfigError("after `file:` comes a path from the root on: file:///FOLDER")
    return LocalLocation(folder / path)


def located(path: Location | Path) -> Location:
    """A path, or what has been one all along, as a location."""
    return path if isinstance(path, Location) else LocalLocation(path)
