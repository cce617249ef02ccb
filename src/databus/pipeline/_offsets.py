"""What Spark writes down of a query: where each of its batches ends."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from databus.core import Checkpoint, CorruptData, Pair, SourceCheckpoint
from databus.pipeline._contract import Input

_MARK: Final = "with-ledger"


@dataclass(frozen=True)
class Offsets:
    """Of a query over one physical source. folder: of its checkpoint. log: uuid of the log that its rows come from."""

    folder: Path
    origin: Input
    physical: str
    log: str

    def position(self, batch_id: int) -> SourceCheckpoint:
        """The end of a batch, which Spark wrote down before it ran it; with the log's uuid. Raises `CorruptData`."""
        return self.origin.position_of(self._offset(batch_id), self.physical, self.log)

    def position_in(self, checkpoint: Checkpoint) -> SourceCheckpoint:
        """What a checkpoint says; with the log's uuid."""
        return replace(checkpoint.sources.get(self.physical, SourceCheckpoint()), log=self.log)

    def pair_of(self, checkpoint: Checkpoint) -> Pair:
        """The pair of a checkpoint."""
        return self.position_in(checkpoint).pair

    def checkpoint(self, batch_id: int) -> Checkpoint:
        """The end of a batch as a checkpoint. Raises `CorruptData`."""
        offset = self._offset(batch_id)
        if self.origin.resumes:
            return Checkpoint.from_json(offset, str(self._path(batch_id)))
        return Checkpoint({self.physical: self.origin.position_of(offset, self.physical, self.log)})

    def _path(self, batch_id: int) -> Path:
        return self.folder / "offsets" / str(batch_id)

    def _offset(self, batch_id: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._path(batch_id).read_text(encoding="utf-8").splitlines()[2])
        except (OSError, ValueError, IndexError) as error:
            raise CorruptData(f"{self._path(batch_id)}: not the offsets of a micro-batch: {error}") from error
        return found

    @property
    def are_of_before_ledgers(self) -> bool:
        """Whether Spark has written down something that no ledger was ever written beside."""
        return (self.folder / "offsets").is_dir() and not (self.folder / _MARK).exists()

    def mark(self) -> None:
        """Note that there is a ledger beside them: before the first batch is noted there."""
        (self.folder / _MARK).touch()

    def drop_damaged(self) -> None:
        """Remove them where Spark would not start with them, as where somebody has removed the folder while a query was
        writing there: Spark makes it again, without its metadata.
        """
        if (self.folder / "offsets").is_dir() and not (self.folder / "metadata").exists():
            shutil.rmtree(self.folder)

    def committed(self) -> Checkpoint | None:
        """The end of the last batch that Spark knows to be done; None if there is none, or it cannot be read."""
        commits = self.folder / "commits"
        done = [int(each.name) for each in commits.iterdir() if each.name.isdigit()] if commits.is_dir() else []
        try:
            return self.checkpoint(max(done)) if done else None
        except CorruptData:
            return None
