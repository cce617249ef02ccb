"""A process's standard input: the changes of a batch as lines, in commit order, at least once.

The process runs where the driver does. What counts as taken is the user's choice, see `acknowledge`.
"""

import shutil
import time
from typing import ClassVar, Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from databus.core import (
    ConfigError,
    DatabusError,
    FatalError,
    ServiceUnavailable,
    TransientError,
)
from databus.flow import ChangeBatch
from databus.formats import BigIntegers, check_whole_rows
from databus.plugins import Delivery, Output, OutputConfig, OutputContext
from databus.schema import TableSchema
from databus.sinks._letters import refuse_gaps
from databus.sinks.http import BodyForm
from databus.sinks.stream._child import Child

_WRITE_BYTES: Final = 1 << 20


class StreamOutputConfig(OutputConfig):
    """Lines to the standard input of a process. See docs/streams.md."""

    catch_up_default: ClassVar[Literal["together", "apart"]] = "together"
    type: Literal["stream"] = "stream"
    command: list[str] = Field(
        min_length=1,
        description="The program and its arguments, each a text of its own; there is no shell between. It runs on the "
        "driver's machine, in the folder of the pipeline's file. Secrets belong into `environment`, for arguments can "
        "be seen in the list of processes.",
        examples=[["python3", "warm_cache.py", "--fast"], ["sh", "-c", "gzip >> changes.gz"]],
    )
    environment: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Variables that it has beside those of the driver. What is secret is named by reference.",
        examples=[{"CACHE_PASSWORD": "${CACHE_PASSWORD}"}],
    )
    acknowledge: Literal["exit", "answer", "pipe"] = Field(
        "exit",
        description="When a batch counts as taken. `exit`: each batch has a process of its own, which has to end with "
        "code 0. `answer`: one process for all; behind each batch comes a line with `_acknowledge`, whose text the "
        "process has to print. `pipe`: one process for all; when the system's pipe has taken the batch, so what the "
        "process had not worked on when it died is lost.",
    )
    format: Literal["own", "debezium", "maxwell", "canal", "cloudevents", "cloudevents_debezium"] = Field(
        "own", description="What a line of JSON looks like: see docs/formats.md. `own` is a row, as in docs/http.md."
    )
    column: str | None = Field(
        None,
        description="Column whose text is the line, in the place of JSON: one line for each row but those from before "
        "an update. A table that has no such column stops the output, and so does a text with a line feed.",
        examples=["url"],
    )
    big_integers: Literal["number", "string"] = Field(
        "number", description="How integers beyond 2^53 are written in the formats `own` and `cloudevents`."
    )
    controls: bool = Field(
        False, description="Whether truncations, drops and other controls are lines too; format `own` alone."
    )
    on_error: Literal["retry", "halt"] = Field(
        "retry",
        description="What to do about a process that fails, or ends too early: try the batch again in a new one, after "
        "waits that grow (`run.retry_ms_max`); or stop the output.",
    )
    on_gap: Literal["stop", "continue"] = Field(
        "stop", description="What to do where changes are missing and no snapshot is said to follow: stop, or go on."
    )
    batch_ms_max: int = Field(
        60_000,
        ge=1,
        le=3_600_000,
        description="How long a process may take for a batch, in milliseconds: to read it, and to end or to answer. "
        "Then it is killed, with all that it has started.",
    )
    end_ms_max: int = Field(
        5_000,
        ge=0,
        le=600_000,
        description="How long one process for all may take to end when its input has, in milliseconds; then it is "
        "killed.",
    )

    @field_validator("command")
    @classmethod
    def _is_command(cls, command: list[str]) -> list[str]:
        if not command[0] or any("\0" in word for word in command):
            raise ValueError("expected a program and its arguments")
        return command

    @field_validator("environment")
    @classmethod
    def _are_variables(cls, given: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in given.items():
            if not name or "=" in name or "\0" in name + value.get_secret_value():
                raise ValueError(f"{name!r} is no name of a variable, or its value has a zero byte")
        return given

    @model_validator(mode="after")
    def _goes_together(self) -> "StreamOutputConfig":
        if self.controls and (self.format != "own" or self.column is not None):
            raise ValueError("`controls` have a form in `format: own` alone")
        if self.column is not None and self.format != "own":
            raise ValueError("`column` and `format`: give one of them")
        return self


class StreamOutput(Output):
    """Writes lines to a process."""

    config_model: ClassVar[type[OutputConfig]] = StreamOutputConfig
    delivery: ClassVar[Delivery] = Delivery.AT_LEAST_ONCE
    config: StreamOutputConfig

    def __init__(self, config: StreamOutputConfig, context: OutputContext) -> None:
        super().__init__(config, context)
        self._form = BodyForm(
            "",
            config.format,
            "lines",
            BigIntegers(config.big_integers),
            config.controls,
            rows_max=1 << 30,
            bytes_max=_WRITE_BYTES,
            column=config.column,
        )
        self._child: Child | None = None

    def check_table(self, table: TableSchema) -> None:
        """See `ChecksTables.check_table`."""
        check_whole_rows(table, self.config.format, f"outputs.{self.context.output}.format: ")

    def open(self) -> None:
        """See `Output.open`. Raises `ConfigError` for a program that is not there."""
        program, folder = self.config.command[0], self.context.folder
        if shutil.which(str(folder / program) if "/" in program else program) is None:
            raise ConfigError(
                f"outputs.{self.context.output}: `command`: there is no program {program} here that can be run. It is "
                f"looked for in PATH, and with a slash in it from {folder} on"
            )

    def write(self, batch: ChangeBatch) -> None:
        """See `Output.write`."""
        deadline_s = time.monotonic() + self.config.batch_ms_max / 1e3
        try:
            self._give(batch, deadline_s)
        except BaseException as error:
            self._kill()
            if isinstance(error, TransientError) and self.config.on_error == "halt":
                raise FatalError(f"{error}. With `on_error: retry` it is tried again") from error
            raise
        if self.config.on_gap == "stop":
            refuse_gaps(batch, self.context.output, "the process")

    def _give(self, batch: ChangeBatch, deadline_s: float) -> None:
        how, is_empty = self.config.acknowledge, True
        for request in self._form.requests(batch, lambda _: True):
            if is_empty and self._child is not None and not self._child.is_alive:
                self._has_died(self._child)
            child = self._child = self._child or self._start()
            is_empty = False
            child.write(request.body, deadline_s)
        if self._child is None or is_empty:
            return
        if how == "exit":
            self._child.finish(deadline_s)
            self._kill()
        elif how == "answer":
            mark = f"{batch.end.scn}.{batch.end.pair[1]}"
            self._child.write(f'{{"_acknowledge":"{mark}"}}\n'.encode(), deadline_s)
            while self._child.answer(deadline_s).strip() != mark:
                continue

    def _has_died(self, child: Child) -> None:
        """Between two batches. Raises `ServiceUnavailable` where it is unknown what it had worked on."""
        how = child.how_it_ended()
        self._kill()
        if self.config.acknowledge == "pipe":
            raise ServiceUnavailable(
                f"{how} between two batches; what it had been given and not worked on is lost. Another one is started"
            )

    def _start(self) -> Child:
        config = self.config
        environment = {name: value.get_secret_value() for name, value in config.environment.items()}
        return Child(
            f"outputs.{self.context.output}: {config.command[0]}",
            config.command,
            self.context.folder,
            environment,
            answers=config.acknowledge == "answer",
        )

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def close(self) -> None:
        """See `Output.close`. The process has `end_ms_max` to end by itself, at the end of its input."""
        if self._child is None:
            return
        try:
            self._child.finish(time.monotonic() + self.config.end_ms_max / 1e3)
        except DatabusError:
            if self.config.acknowledge == "pipe":  # what it had not worked on was not noted
                raise
        finally:
            self._kill()
