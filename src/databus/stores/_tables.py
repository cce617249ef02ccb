"""One Delta table of a store, as its log says it: which files, in which version."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from databus.core import CorruptData, Pair, ServiceUnavailable
from databus.disk import Location
from databus.flow import Folders, spelled
from databus.stores._parquet import StoredFile, file_of

if TYPE_CHECKING:
    from deltalake import DeltaTable


def table_folder(root: Location, physical: str, source: str) -> Location:
    """Where the table of `source` (`db.table`) is in a store; the pipeline that fills it writes there."""
    return Folders("bootstrap.path", root, "{physical}/{db}.{table}", spelled).of(physical, source)


class StoreTable:
    """One table. Footers are read once: files never change. One thread uses it at a time."""

    def __init__(self, folder: Location) -> None:
        self.folder = folder
        self._table: DeltaTable | None = None
        self._files: dict[str, StoredFile] = {}
        self.size_bytes = 0
        """Of its files, when they were asked for last."""

    def refresh(self) -> bool:
        """See the table as it is now; whether there is one. It is opened again: it may have been replaced since."""
        self._table = None
        if not (self.folder / "_delta_log").names():
            return False
        from deltalake import DeltaTable

        with self._errors():
            self._table = DeltaTable(self.folder.engine_uri, storage_options=self.folder.engine_options)
        return True

    @property
    def version(self) -> int:
        """The version that was seen last."""
        return int(self._opened.version())

    @property
    def id(self) -> str:
        """By what it differs from any other table, also from one that is made later in the same folder."""
        return str(self._opened.metadata().id)

    def stored(self, application: str) -> Pair | None:
        """The pair that the version has stored for an application."""
        with self._errors():
            scn = self._opened.transaction_version(application)
            seq = self._opened.transaction_version(f"{application}/seq")
        return None if scn is None or seq is None else (scn, seq)

    def log_number(self, application: str) -> int | None:
        """The number of the log that its newest rows came from; see `databus.flow.log_number`."""
        with self._errors():
            number = self._opened.transaction_version(f"{application}/log")
        return None if number is None else int(number)

    def go_to(self, version: int) -> None:
        """See the table as it was at an older version, until the next `refresh`."""
        with self._errors():
            self._opened.load_as_version(version)

    def schema(self) -> pa.Schema:
        """Its columns."""
        return pa.schema(self._opened.schema().to_arrow())

    def files(self, noted: Callable[[], Mapping[str, str]] = dict) -> list[StoredFile]:
        """Its files, in the order of their names. noted: by name, the digests that were noted of them. Raises
        `CorruptData` for one that is missing, or is another one.
        """
        with self._errors():
            actions = pa.table(self._opened.get_add_actions(flatten=True))
        paths, sizes = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
        known = {unquote(path): size for path, size in zip(paths, sizes, strict=True)}
        names = sorted(known)
        self.size_bytes = sum(sizes)
        digests = noted() if known.keys() - self._files.keys() else {}
        for name in names:
            if name not in self._files:
                self._files[name] = file_of(self.folder / name, digests.get(name, ""))
            if (size := self._files[name].size) != known[name]:
                del self._files[name]  # somebody may put it back
                raise CorruptData(f"{self.folder / name}: has {size} bytes, and was written with {known[name]}")
        self._files = {name: self._files[name] for name in names}
        return self.listed

    @property
    def listed(self) -> list[StoredFile]:
        """Its files, as they were asked for last."""
        return list(self._files.values())

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises `ServiceUnavailable` where the engine cannot read the table, as when it is removed meanwhile."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            trouble = self.folder.trouble(error)  # of a store, whose own words may hold secrets
            raise ServiceUnavailable(f"{self.folder}: cannot be read now: {trouble or error}") from None

    @property
    def _opened(self) -> "DeltaTable":
        if self._table is None:
            raise ServiceUnavailable(f"{self.folder}: holds no table yet")
        return self._table
