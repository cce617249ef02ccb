"""Where a table's schema changes in the log: what a typed reader has to know before it reads what stands before it."""

from functools import partial

from databus.core import ControlKind, CorruptData, Pair, SourceCheckpoint
from databus.link import RangeControl, RelayClient, patiently
from databus.schema import SchemaChange, TableSchema
from databus.spark._target import Target


def find_changes(
    client: RelayClient, target: Target, start: SourceCheckpoint, until: Pair, retry_ms: int
) -> list[SchemaChange]:
    """The `schema` controls of the target's table after `start`, up to and including `until`, in order.

    The relay looks at headers alone, and opens the log only where it finds a control.
    """
    found: list[SchemaChange] = []
    position = start
    while position.pair < until:
        range_ = partial(client.range, target.physical, position, sources=target.sources, to=until)
        looked = patiently(partial(range_, stop_at_controls=True), retry_ms)
        found += [
            patiently(partial(_read, client, target, position, control), retry_ms)
            for control in looked.controls
            if control.kind == ControlKind.SCHEMA and start.pair < control.pair <= until
        ]
        if looked.groups == 0:
            break
        position = looked.position
    return found


def _read(client: RelayClient, target: Target, at: SourceCheckpoint, control: RangeControl) -> SchemaChange:
    """A control, from the first group after `at`."""
    with client.stream(target.physical, at, sources=target.sources, to=control.pair, wait_ms=0) as stream:
        for group in (group for groups in stream for group in groups):
            frame = group.control
            if frame is not None and frame.header.first == control.pair:
                body = frame.control
                before = _before(client, body.get("previous"))
                return SchemaChange.of_control(control.pair, body, before, client.table_of(control.fingerprint))
    raise CorruptData(f"{target.name}: the control at {control.pair} is not where the relay saw it")


def _before(client: RelayClient, previous: object) -> TableSchema | None:
    """The definition before a change: its fingerprint in hexadecimal, or as a number, as logs of old have it."""
    if previous is None:
        return None
    return client.table_of(previous if isinstance(previous, int) else int(str(previous), 16))
