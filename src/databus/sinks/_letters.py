"""Dead letters, for outputs that have them: the options, the folder, and what controls release."""

from pydantic import Field

from databus.core import InputError, UnsupportedFeature
from databus.flow import Batch, DeadLetters, StagedBatch, TableControl, released_below
from databus.plugins import Output, OutputConfig


class LettersConfig(OutputConfig):
    """Options of outputs that may have `on_error: dead_letter`."""

    on_error: str
    dead_letters: str = Field(
        ".databus/dead-letters",
        description="Folder for dead letters, here or in an object store; one that all machines see which run tasks.",
    )
    dead_letters_max: int = Field(
        10_000, ge=0, description="Most dead letters that there may be; with more, the output stops."
    )


class LettersOutput(Output):
    """Base of outputs that keep rows which their targets refuse."""

    config: LettersConfig

    @property
    def letters(self) -> DeadLetters:
        """See `KeepsLetters.letters`."""
        config, context = self.config, self.context
        folder = context.locate(config.dead_letters) / context.pipeline / context.output
        return DeadLetters(folder, context.output, config.dead_letters_max)

    @property
    def kept_letters(self) -> DeadLetters | None:
        """The letters, if rows that are refused are to be some."""
        return self.letters if self.config.on_error == "dead_letter" else None

    def check_left(self) -> None:
        """For outputs whose targets take changes in order. Raises `InputError` where letters are left from when they
        were kept: nothing parks their keys now, and a replay would write them behind newer changes.
        """
        count = 0 if self.config.on_error == "dead_letter" else self.letters.count()
        if count:
            name = self.context.output
            raise InputError(
                f"outputs.{name}: {count} dead letters are left, and `on_error` is {self.config.on_error}: newer "
                f"changes of their keys would be written before them. `databus dead-letters replay FILE {name}` writes "
                f"them, `drop` forgets them (FILE is the pipeline's file); or say `on_error: dead_letter` again"
            )

    def release_letters(self, batch: StagedBatch) -> None:
        """Forget letters that controls of a batch have overtaken. Raises `LimitExceeded` where too many are left."""
        letters = self.kept_letters
        if letters is None:
            return
        for item in batch.items:
            below = released_below(batch, item) if isinstance(item, TableControl) else None
            if below is not None:
                letters.release(f"{batch.physical}/{item.table.source}", below)
        letters.check()


def refuse_gaps(batch: Batch, output: str, who: str) -> None:
    """Raise `UnsupportedFeature` for a gap that no snapshot is said to follow. who: would not notice it."""
    for item in batch.items:
        if isinstance(item, TableControl) and item.missing is not None:
            raise UnsupportedFeature(
                f"outputs.{output}: changes of {batch.physical}/{item.table.source} are missing ({item.missing}), "
                f"which {who} would not notice. Have the table read again (`databus snapshot`), and say "
                f"`on_gap: continue`"
            )
