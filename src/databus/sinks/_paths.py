"""Where a source's copy is, from a template."""

from collections.abc import Iterable

from databus.core import ConfigError
from databus.disk import Location
from databus.flow import FolderName, Folders, quoted
from databus.plugins import OutputContext


def path_of(template: str, context: OutputContext, physical: str, source: str, named: FolderName = quoted) -> Location:
    """The folder of `source` (`db.table`); see `Folders.of`."""
    return folders_of(template, context, named).of(physical, source)


def target_at(path: Location | str) -> tuple[str, str]:
    """How OpenLineage names a folder: by its store, and by the path there.

    >>> target_at("s3://lake/copy/orders")
    ('s3://lake', 'copy/orders')
    """
    scheme, separator, rest = str(path).partition("://")
    if not separator or scheme == "file":
        return "file", rest or scheme
    store, _, below = rest.partition("/")
    return f"{scheme}://{store}", below


def folders_of(template: str, context: OutputContext, named: FolderName = quoted) -> Folders:
    """The folders of a template. Without any of `{physical}`, `{db}`, `{table}`, `/{table}` is added."""
    return Folders(f"outputs.{context.output}.path", root_of(template, context), _below_root(template), named)


def root_of(template: str, context: OutputContext) -> Location:
    """The folder that all folders of a template are in."""
    return context.locate(template[: len(template) - len(_below_root(template))] if "{" in template else template)


def _below_root(template: str) -> str:
    """The part of a template that is not the same for all tables."""
    fixed, brace, _ = template.partition("{")
    return template[fixed.rfind("/") + 1 :] if brace else "{table}"


def remove_folders(
    template: str, context: OutputContext, tables: Iterable[str], named: FolderName = quoted
) -> list[Location]:
    """Remove the folders of tables, by full names; returns them. Raises `InputError` for one that stays."""
    parts = (name.partition("/") for name in tables)
    folders = sorted({path_of(template, context, physical, source, named) for physical, _, source in parts}, key=str)
    for path in folders:
        path.remove_folder()
    return folders


class TableFolders:
    """Remembers which source has which folder, since two must never share one."""

    def __init__(self, template: str, context: OutputContext, named: FolderName = quoted) -> None:
        self._template = template
        self._context = context
        self._named = named
        self._taken: dict[Location, str] = {}

    def take(self, physical: str, source: str) -> Location:
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
