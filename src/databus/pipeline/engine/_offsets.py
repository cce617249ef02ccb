"""Spark's offsets of a query: where each of its batches ends."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from databus.core import Checkpoint, CorruptData, SourceCheckpoint
from databus.plugins import Input
from databus.wire import is_answer


@dataclass(frozen=True)
class Offsets:
    """Of a query over one physical source."""

    folder: Path
    """The folder of its checkpoint."""
    origin: Input
    physical: str
    log: str
    """Uuid of the log that its rows come from."""

    def position(self, batch_id: int) -> SourceCheckpoint:
        """The end of a batch, which Spark wrote before it ran the batch; with the log's uuid. Raises `CorruptData`."""
        return self.origin.position_of(self._offset(batch_id), self.physical, self.log)

    def position_in(self, checkpoint: Checkpoint) -> SourceCheckpoint:
        """The position in a checkpoint; with the log's uuid."""
        return replace(checkpoint.sources.get(self.physical, SourceCheckpoint()), log=self.log)

    def checkpoint(self, batch_id: int) -> Checkpoint:
        """The end of a batch as a checkpoint. Raises `CorruptData`."""
        offset = self._offset(batch_id)
        if self.origin.resumes:
            return Checkpoint.from_json(offset, f"{self.folder}: batch {batch_id}")
        return Checkpoint({self.physical: self.origin.position_of(offset, self.physical, self.log)})

    def _offset(self, batch_id: int) -> dict[str, Any]:
        from databus.spark import offset_of

        offset: dict[str, Any] = offset_of(self.folder, batch_id)
        return offset

    def drop_damaged(self) -> None:
        """Remove them if Spark would not start with them."""
        from databus.spark import is_damaged

        if is_damaged(self.folder):
            shutil.rmtree(self.folder)

    def drop_answers(self) -> None:
        """Remove them if Spark's next batch is of a bootstrap service's answer, which may be gone by now."""
        from databus.spark import last_done

        done = last_done(self.folder)
        try:
            planned = self.checkpoint(0 if done is None else done + 1)
        except CorruptData:
            return
        if any(is_answer(source.log) for source in planned.sources.values()):
            shutil.rmtree(self.folder, ignore_errors=True)

    def committed(self) -> Checkpoint | None:
        """The end of the last batch that Spark has finished; None if there is none, or it cannot be read."""
        from databus.spark import last_done

        done = last_done(self.folder)
        try:
            return None if done is None else self.checkpoint(done)
        except CorruptData:
            return None
