"""Messages in Avro, each read by the schema that it was written in, as its writers' registry has it."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import UnrepresentableValue
from databus.formats import ReadRows, confluent_unframed
from databus.link import RegistryAccess
from databus.schema import TableSchema

_SCHEMAS_KEPT_MAX: Final = 1_024


class ReadAvro(Protocol):
    """Reads messages of one writer's schema: `own_avro_rows`, or `debezium_avro_rows` with its form."""

    def __call__(
        self, table: TableSchema, values: pa.Array, *, schema: Mapping[str, Any] | None = None
    ) -> ReadRows: ...


class WriterSchemas:
    """The schemas of ids, which never change; a registry is asked for each once, as long as there is room.

    What it does not know it may learn, so that is asked again after `forget_refused`; not for each message, though.
    """

    def __init__(self, access: RegistryAccess) -> None:
        self._access = access
        self._kept: OrderedDict[int, Mapping[str, Any]] = OrderedDict()
        self._refused: dict[int, str] = {}

    def forget_refused(self) -> None:
        """Ask again for the ids of which there was no schema to read by."""
        self._refused.clear()

    def rows(self, read: ReadAvro, table: TableSchema, values: pa.Array) -> ReadRows:
        """The rows of framed messages, in their order, whichever schemas they were written in.

        Raises `UnrepresentableValue` for a message that cannot be read, or has an id that the registry does not know;
        `ServiceUnavailable` while the registry is away.
        """
        ids, bodies = confluent_unframed(values)
        parts = []
        for number in np.unique(ids[ids >= 0]).tolist():
            chosen = np.flatnonzero(ids == number)
            part = read(table, bodies.take(pa.array(chosen)), schema=self._of(number))
            parts.append(part._replace(messages=_at(chosen, part.messages), others=_at(chosen, part.others)))
        if not parts:
            return read(table, bodies)  # tombstones
        return parts[0] if len(parts) == 1 else _in_order(parts)

    def _of(self, number: int) -> Mapping[str, Any]:
        if number in self._refused:
            raise UnrepresentableValue(self._refused[number])
        if number not in self._kept:
            try:
                self._kept[number] = self._access.schema(number)
            except UnrepresentableValue as error:
                self._refused[number] = str(error)
                raise
            if len(self._kept) > _SCHEMAS_KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number]


def _at(places: npt.NDArray[np.int64], numbers: pa.Int64Array) -> pa.Int64Array:
    return pa.array(places[numbers.to_numpy()])


def _in_order(parts: list[ReadRows]) -> ReadRows:
    """What was read in several schemas, in the order of the messages."""
    messages = np.concatenate([part.messages.to_numpy() for part in parts])
    order = np.argsort(messages, kind="stable")
    (rows,) = pa.Table.from_batches([part.rows for part in parts]).take(pa.array(order)).combine_chunks().to_batches()
    others = np.sort(np.concatenate([part.others.to_numpy() for part in parts]))
    return ReadRows(rows, pa.array(messages[order]), pa.array(others))
