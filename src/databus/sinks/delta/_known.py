"""What a Delta output has made so far, in a file beside its tables, so that a table that is gone is missed.

Without it, a mirror whose folder was removed would begin again with the next change, and lack all rows before.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Self

from databus.core import CorruptData
from databus.disk import Location


@dataclass
class Known:
    """The tables that an output has written, as a file says."""

    path: Location
    """Of the file."""
    from_beginning: dict[str, bool] = field(default_factory=dict)
    """By physical source, whether its first batch began before everything."""
    tables: dict[str, str] = field(default_factory=dict)
    """Folders, by source."""

    @classmethod
    def load(cls, path: Location) -> Self:
        """Read the file; without one, the output begins now. Raises `CorruptData` if it is not ours."""
        try:
            file = path.read()
            if file is None:
                return cls(path)
            value = json.loads(file.content)
            beginnings = {str(physical): bool(at_zero) for physical, at_zero in value["from_beginning"].items()}
            return cls(path, beginnings, {str(k): str(v) for k, v in value["tables"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(
                f"{path}: does not say which tables this output has made ({error!r}). Restore it; or remove it, if "
                f"all tables are in their folders"
            ) from error

    def save(self) -> None:
        """Write the file, whole or not at all, durably."""
        text = json.dumps({"from_beginning": self.from_beginning, "tables": self.tables}, indent=1)
        self.path.write(text.encode())

    def meet(self, physical: str, *, begins_at_zero: bool) -> None:
        """Note where the first batch of a physical source began; of a later one, nothing."""
        if physical not in self.from_beginning:
            self.from_beginning[physical] = begins_at_zero
            self.save()

    def add(self, name: str, folder: Location) -> None:
        """Note that a table is there."""
        if self.tables.get(name) != str(folder):
            self.tables[name] = str(folder)
            self.save()

    def remove(self, names: Collection[str]) -> None:
        """Forget tables."""
        self.tables = {name: folder for name, folder in self.tables.items() if name not in names}
        if not self.tables:
            self.from_beginning = {}
        self.save()
