"""Where a source's copy is, from a template."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from databus.core import ConfigError, InputError, UnsupportedFeature
from databus.pipeline._contract import OutputContext

Named = Callable[[str], str]
"""The part of a folder's name that stands for a name in the database; different for different ones."""


def quoted(name: str) -> str:
    """As in a URL, with its blanks.

    >>> quoted("größe 1/2")
    'gr%C3%B6%C3%9Fe 1%2F2'
    """
    return quote(name, safe=" ")


def spelled(name: str) -> str:
    """With letters of every script as they are, and no `%`, which Delta's engine takes for an escape of its own.

    >>> spelled("größe 1/2"), spelled("a=b")
    ('größe 1=2F2', 'a=3Db')
    """
    return "".join(c if c.isalnum() else quote(c, safe=" ").replace("%", "=") for c in name)


def path_of(template: str, context: OutputContext, physical: str, source: str, named: Named = quoted) -> Path:
    """The folder of `source` (`db.table`). Without any of `{physical}`, `{db}`, `{table}`, `/{table}` is added.

    Raises `ConfigError` for a template that names anything else, `UnsupportedFeature` for a table without a name of its
    own, such as `..`, whose folder would be that of all.
    """
    db, _, table = source.rpartition(".")
    if not table:
        raise UnsupportedFeature(
            f"outputs.{context.output}.path: the table {physical}/{source} has no name that a folder can have; leave "
            "it out in the `tables` of the input"
        )
    names = {"physical": physical, "db": db, "table": table}
    try:
        path = (template if "{" in template else f"{template}/{{table}}").format(
            **{name: named(value) for name, value in names.items()}
        )
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"outputs.{context.output}.path: {template!r} is not a template ({error!r}); it may name "
            "{physical}, {db} and {table}"
        ) from error
    return context.folder / path


def root_of(template: str, context: OutputContext) -> Path:
    """The folder that all folders of a template are in."""
    fixed = list(Path(template.partition("{")[0]).parts)
    if "{" in template and not template.partition("{")[0].endswith("/"):
        fixed = fixed[:-1]
    return context.folder.joinpath(*fixed)


def remove_folders(template: str, context: OutputContext, tables: Iterable[str], named: Named = quoted) -> list[Path]:
    """Remove the folders of tables, by full names; returns them. Raises `InputError` for one that stays."""
    parts = (name.partition("/") for name in tables)
    found = sorted({path_of(template, context, physical, source, named) for physical, _, source in parts})
    for path in found:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{path}: could not be removed: {error}") from error
    return found


class TableFolders:
    """Remembers which source has which folder, since two must never share one."""

    def __init__(self, template: str, context: OutputContext, named: Named = quoted) -> None:
        self._template = template
        self._context = context
        self._named = named
        self._taken: dict[Path, str] = {}

    def take(self, physical: str, source: str) -> Path:
        """The folder of a source. Raises `ConfigError` if another source has it."""
        path = path_of(self._template, self._context, physical, source, self._named)
        name = f"{physical}/{source}"
        other = self._taken.setdefault(path, name)
        if other != name:
            raise ConfigError(
                f"outputs.{self._context.output}.path: {name} and {other} would both be {path}; "
                "put {db} or {physical} into the path (or, where the output has it, say `merge: true`)"
            )
        return path
