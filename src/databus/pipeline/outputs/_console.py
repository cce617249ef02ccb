"""The console: what comes, as text, for looking at it."""

import json
import sys
from typing import ClassVar, Literal

from pydantic import Field

from databus.formats import json_lines
from databus.pipeline._batch import ChangeBatch, TableControl
from databus.pipeline._contract import Delivery, Output, OutputConfig


class ConsoleConfig(OutputConfig):
    """Options of the output `console`."""

    type: Literal["console"] = "console"
    rows_max: int = Field(
        20, ge=0, le=100_000, description="Most rows that are printed of a table in a batch; of more, their number."
    )


class ConsoleOutput(Output):
    """Prints rows as JSON, one a line, to standard output. A batch that comes again is printed again."""

    config_model: ClassVar[type[OutputConfig]] = ConsoleConfig
    delivery: ClassVar[Delivery] = Delivery.AT_LEAST_ONCE
    config: ConsoleConfig

    def write(self, batch: ChangeBatch) -> None:
        """See `Output.write`."""
        for item in batch.items:
            name = f"{batch.physical}/{item.table.source}"
            if isinstance(item, TableControl):
                scn, seq = item.pair
                line = {"_source": name, "_commit_version": scn, "_seq": seq, "_control": dict(item.body)}
                sys.stdout.write(f"{json.dumps(line, ensure_ascii=False)}\n")
                continue
            for part in item.rows.slice(0, self.config.rows_max).to_batches():
                sys.stdout.write(json_lines(part, _source=name).decode())
            left = item.rows.num_rows - self.config.rows_max
            if left > 0:
                sys.stdout.write(f"{json.dumps({'_source': name, '_rows_not_shown': left})}\n")
        sys.stdout.flush()
