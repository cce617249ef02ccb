"""The console: what comes, as text, for looking at it."""

import sys
from typing import ClassVar, Literal

from pydantic import Field

from databus.core import SOURCE
from databus.flow import ChangeBatch, TableControl, control_text, row_lines
from databus.formats import json_line
from databus.plugins import Delivery, Output, OutputConfig


class ConsoleConfig(OutputConfig):
    """Rows as JSON, one a line, on standard output. A batch that comes again is printed again."""

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
                sys.stdout.write(control_text(name, item))
                continue
            sys.stdout.writelines(row_lines(name, item.table, item.rows.slice(0, self.config.rows_max)))
            left = item.rows.num_rows - self.config.rows_max
            if left > 0:
                sys.stdout.write(f"{json_line({SOURCE: name, '_rows_not_shown': left})}\n")
        sys.stdout.flush()
