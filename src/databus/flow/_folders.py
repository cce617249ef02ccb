"""The folders of an output's tables: a root, and below it a template over the names of a table."""

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from databus.core import ConfigError, UnsupportedFeature, name_parts
from databus.disk import Location
from databus.flow._batch import TableRows
from databus.flow._data_file import DataFile, write_data_file


class FolderName(Protocol):
    """The part of a folder's name that stands for a name in the database; different for different ones."""

    def __call__(self, name: str, *, dots: bool = False) -> str: ...


def quoted(name: str, *, dots: bool = False) -> str:
    """As in a URL, with its blanks. dots: whether dots are written otherwise, too.

    >>> quoted("größe 1/2"), quoted("a.b"), quoted("a.b", dots=True)
    ('gr%C3%B6%C3%9Fe 1%2F2', 'a.b', 'a%2Eb')
    """
    text = quote(name, safe=" ")
    return text.replace(".", "%2E") if dots else text


def spelled(name: str, *, dots: bool = False) -> str:
    """With letters of every script as they are, and no `%`, which Delta's engine takes for an escape of its own.

    >>> spelled("größe 1/2"), spelled("a=b")
    ('größe 1=2F2', 'a=3Db')
    """
    return "".join(c if c.isalnum() else quoted(c, dots=dots).replace("%", "=") for c in name)


@dataclass(frozen=True)
class Folders:
    """Where the files of tables are."""

    where: str
    """The option that says so, for messages."""
    root: Location
    below: str
    """The path from there, which may name {physical}, {db} and {table}."""
    named: FolderName = quoted

    def of(self, physical: str, source: str) -> Location:
        """The folder of `source` (`db.table`).

        Raises `ConfigError` for a template that names anything else, `UnsupportedFeature` for a table without a name of
        its own, such as `..`, whose folder would be that of all.
        """
        db, table = name_parts(source)
        if table in ("", ".", ".."):
            raise UnsupportedFeature(
                f"{self.where}: the table {physical}/{source} has no name that a folder can have; leave it out in the "
                "`tables` of the input"
            )
        # A database has no dot there, so that `{db}.{table}` is another folder for each pair of names.
        names = {"physical": self.named(physical), "db": self.named(db, dots=True), "table": self.named(table)}
        try:
            below = self.below.format(**names)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{self.where}: {self.below!r} is not a template ({error!r}); it may name "
                "{physical}, {db} and {table}"
            ) from error
        return self.root / below


@dataclass(frozen=True)
class FolderWriter:
    """Writes rows of tables into files in their folders; see `PartWriter`."""

    folders: Folders

    def write(self, name: str, rows: TableRows) -> list[DataFile]:
        """See `PartWriter.write`."""
        physical, _, source = name.partition("/")
        return [write_data_file(self.folders.of(physical, source), rows.rows)]
