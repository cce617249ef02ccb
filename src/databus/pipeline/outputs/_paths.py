"""Where a source's copy is, from a template."""

from collections.abc import Callable, Iterable
from urllib.parse import quote

from databus.core import ConfigError, UnsupportedFeature
from databus.disk import Location
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


def path_of(template: str, context: OutputContext, physical: str, source: str, named: Named = quoted) -> Location:
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
        below = _below_root(template).format(**{name: named(value) for name, value in names.items()})
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"outputs.{context.output}.path: {template!r} is not a template ({error!r}); it may name "
            "{physical}, {db} and {table}"
        ) from error
    return root_of(template, context) / below


def root_of(template: str, context: OutputContext) -> Location:
    """The folder that all folders of a template are in."""
    return context.locate(template[: len(template) - len(_below_root(template))] if "{" in template else template)


def _below_root(template: str) -> str:
    """The part of a template that is not the same for all tables."""
    fixed, brace, _ = template.partition("{")
    return template[fixed.rfind("/") + 1 :] if brace else "{table}"


def remove_folders(
    template: str, context: OutputContext, tables: Iterable[str], named: Named = quoted
) -> list[Location]:
    """Remove the folders of tables, by full names; returns them. Raises `InputError` for one that stays."""
    parts = (name.partition("/") for name in tables)
    found = sorted({path_of(template, context, physical, source, named) for physical, _, source in parts}, key=str)
    for path in found:
        path.remove_folder()
    return found


class TableFolders:
    """Remembers which source has which folder, since two must never share one."""

    def __init__(self, template: str, context: OutputContext, named: Named = quoted) -> None:
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
