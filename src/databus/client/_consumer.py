"""Consumers: what is called back. Derive from `Consumer` and override what you need."""

from enum import IntEnum

from databus.client._batches import WindowBatch
from databus.client._partition import Partition
from databus.client._window import Changes, ControlEvent, Window
from databus.core import Checkpoint, SourceCheckpoint
from databus.schema import TableSchema

AnyWindow = Window | WindowBatch


class Result(IntEnum):
    """What a callback may return; None is SUCCESS, except from `on_error`. The worst of a window's callbacks counts.

    CHECKPOINT: save a checkpoint at the end of this window, however short ago the last one was; of a part of a large
    transaction: at the end of this part. SKIP_CHECKPOINT: not at the end of this window; a later one covers it. ERROR,
    like an exception: roll back to the last checkpoint and replay. ERROR_FATAL: stop consuming.
    """

    SUCCESS = 0
    CHECKPOINT = 100
    SKIP_CHECKPOINT = 150
    ERROR = 200
    ERROR_FATAL = 300


class Consumer:
    """What is called back, in this order.

        on_start_consumption
            on_start_bootstrap                                      before the first window from a bootstrap service
            on_start_window
                on_control                                      at most once, before the rows
                on_start_source  on_data_events  on_end_source  for each source that has rows
            on_end_window
            on_stop_bootstrap                                       after the last of those
            on_checkpoint                                       when one is due
        on_stop_consumption

    A transaction too large for memory has one `on_start_window` and one `on_end_window`; what lies between comes part
    by part. Windows of different physical sources are never nested. One thread makes all calls.

    When a callback fails, `on_rollback` says from where on everything comes again: what was done since then must be
    undone, or be harmless to repeat. So nothing is lost, and nothing that was checkpointed comes twice. One exception:
    where the checkpoint stands inside a transaction and the relay reads another log now, that transaction comes again
    from its first row; its first window says so by `restarts`.
    """

    def on_take(self, partition: Partition, fence: int) -> Checkpoint | None:
        """Of a group: this partition is the consumer's now, under this fence, which is higher than all before.

        Returns where its target stands; None begins where the group stands. A target that is guarded stores the fence
        here, and takes nothing any more from whoever has a lower one. Raises `Fenced` if the target knows a higher one.
        """

    def on_start_consumption(self) -> Result | None:
        """Before anything else. A failure here stops the client."""

    def on_start_bootstrap(self, physical: str) -> Result | None:
        """What follows comes from the bootstrap service: its position had left the relay's log, or there was none."""

    def on_stop_bootstrap(self, physical: str) -> Result | None:
        """All tables stand at one position again; the relay goes on from there."""

    def on_start_window(self, window: AnyWindow) -> Result | None:
        """A window begins: `window.physical`, `window.scn`, and all that a window of the iterator offers."""

    def on_start_source(self, source: str, table: TableSchema) -> Result | None:
        """Rows of this source come next. source: `physical/db.table`."""

    def on_data_events(self, changes: Changes) -> Result | None:
        """Rows of one source, in order: `changes.batch` as Arrow, `changes.rows()` as objects."""

    def on_end_source(self, source: str, table: TableSchema) -> Result | None:
        """No more rows of this source for now."""

    def on_control(self, control: ControlEvent) -> Result | None:
        """Something happened to a table as a whole: schema, truncate, drop, snapshot_begin, snapshot_end, gap."""

    def on_end_window(self, window: AnyWindow) -> Result | None:
        """The window is complete; of a large transaction, `window` is its last part."""

    def on_checkpoint(self, checkpoint: Checkpoint) -> Result | None:
        """About to be saved: when this returns, everything before it must be safe. SKIP_CHECKPOINT puts it off."""

    def on_rollback(self, physical: str, position: SourceCheckpoint) -> Result | None:
        """Everything of this physical source after `position` comes again. A failure here stops the source."""

    def on_error(self, error: BaseException, physical: str | None) -> Result | None:
        """A source cannot go on: retries are exhausted, or its position is purged or foreign.

        None: the client stops, and `run` raises the error. SUCCESS: this source is left behind and the others go on;
        `run` returns when none is left.
        """

    def on_stop_consumption(self) -> Result | None:
        """After everything else."""
