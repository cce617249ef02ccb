"""Where a source's copy is, from a template."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from databus.core import ConfigError, InputError
from databus.pipeline._contract import OutputContext


def path_of(template: str, context: OutputContext, physical: str, source: str) -> Path:
    """The folder of `source` (`db.table`). Without any of `{physical}`, `{db}`, `{table}`, `/{table}` is added.

    Raises `ConfigError` for a template that names anything else.
    """
    db, _, table = source.rpartition(".")
    names = {"physical": physical, "db": db, "table": table}
    try:
        path = (template if "{" in template else f"{template}/{{table}}").format(
            **{name: quote(value, safe=" ") for name, value in names.items()}
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


def remove_folders(template: str, context: OutputContext, tables: Iterable[str]) -> list[Path]:
    """Remove the folders of tables, by full names; returns them. Raises `InputError` for one that stays."""
    found = sorted({path_of(template, context, *name.split("/", 1)) for name in tables})
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

    def __init__(self, template: str, context: OutputContext) -> None:
        self._template = template
        self._context = context
        self._taken: dict[Path, str] = {}

    def take(self, physical: str, source: str) -> Path:
        """The folder of a source. Raises `ConfigError` if another source has it."""
        path = path_of(self._template, self._context, physical, source)
        name = f"{physical}/{source}"
        other = self._taken.setdefault(path, name)
        if other != name:
            raise ConfigError(
                f"outputs.{self._context.output}.path: {name} and {other} would both be {path}; "
                "put {db} or {physical} into the path (or, where the output has it, say `merge: true`)"
            )
        return path
