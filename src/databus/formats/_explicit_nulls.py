"""Which values of `old` are null, and which are not there: Maxwell and Canal mean different things by them, and Arrow's
reader of JSON gives null for both.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.formats._messages import dumps

_NULL: Final = r"\s*:\s*null"

OldOf = Callable[[dict[str, Any], int], dict[str, Any] | None]


class Olds(NamedTuple):
    """The messages of changes, and how to find `old` in them."""

    values: pa.LargeBinaryArray
    """The messages as text."""
    objects: list[dict[str, Any]] | None
    """The messages as Python's objects, where they were read one by one."""
    of: npt.NDArray[np.int64]
    """For each change, the number of its message."""
    nth: npt.NDArray[np.int64]
    """For each change, which of the message's rows it is."""
    is_single: bool
    """Whether no message has two rows."""
    old_of: OldOf
    """Finds the object `old` of a row."""
    members: Collection[str]
    """The names of the format's own members."""
    names: Collection[str]
    """The names of the table's columns."""

    def nulls(self, name: str, is_asked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Where `old` says that a column was null. is_asked: of which changes that is the question, all of which have
        a value now.

        So `"name":null` stands in `old` alone, unless a member of the format, or the end of a column's name with a
        quote, reads the same; such messages are looked at one by one.
        """
        is_null = np.zeros(len(self.of), np.bool_)
        at = np.flatnonzero(is_asked)
        if not len(at):
            return is_null
        if self.objects is None:
            spelled = sorted({dumps(name), json.dumps(name)})
            pattern = f"(?:{'|'.join(map(re.escape, spelled))}){_NULL}"
            matches = pc.match_substring_regex(self.values.take(pa.array(self.of[at])).cast(pa.large_string()), pattern)
            at = at[matches.to_numpy(zero_copy_only=False)]
            if self.is_single and name not in self.members and not any('"' in column for column in self.names):
                is_null[at] = True
                return is_null
        for place in at:
            number = int(self.of[place])
            message = json.loads(self.values[number].as_py()) if self.objects is None else self.objects[number]
            old = self.old_of(message, int(self.nth[place]))
            is_null[place] = old is not None and name in old and old[name] is None
        return is_null


def first_images(
    olds: Olds, name: str, is_update: npt.NDArray[np.bool_], replaced: pa.Array, last: pa.Array
) -> pa.Array:
    """A column of updates' first images: what `old` says, and where it says nothing, the value of the second image."""
    is_null, has_value = (flags.to_numpy(zero_copy_only=False) for flags in (replaced.is_null(), last.is_valid()))
    was_null = olds.nulls(name, is_update & is_null & has_value)
    kept = pc.coalesce(replaced, last)
    return pc.if_else(pa.array(was_null), pa.scalar(None, kept.type), kept) if was_null.any() else kept
