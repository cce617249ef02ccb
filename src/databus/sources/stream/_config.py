"""Options of the stream source."""

from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from databus.sources._config import LocalPath, SourceConfig, SourceName


class StreamConfig(SourceConfig):
    """Lines of a file, or of a process's standard output."""

    type: Literal["stream"] = "stream"
    path: LocalPath | None = Field(
        None, description="File to follow, through rotation and truncation. It need not be there yet."
    )
    command: list[str] | None = Field(
        None,
        min_length=1,
        description="Program and arguments of a process whose standard output is read, in the place of `path`; there "
        "is no shell between. Secrets belong into `environment`.",
        examples=[["journalctl", "--follow", "--output", "json"]],
    )
    environment: dict[str, SecretStr] = Field(
        default_factory=dict, description="Variables that the process has beside those of the relay."
    )
    table: SourceName = Field(
        "stream.lines", pattern=r"^[^./*]+\.[^./*]+$", description="Name of the table that lines are rows of."
    )
    format: Literal["text", "json"] = Field(
        "text",
        description="What a line is: text in UTF-8, or text that is checked to be JSON (blank lines are not rows).",
    )
    on_poison: Literal["stop", "skip", "text"] = Field(
        "stop",
        description="What to do about a line that is not what `format` says, or longer than `line_bytes_max`: stop and "
        "name its place; record a gap and go on behind it; or make it a row, whose column `problem` says what it is.",
    )
    start: Literal["begin", "end"] = Field(
        "begin", description="Where a new log begins to read the file that is there."
    )
    rotated: list[str] = Field(
        default_factory=lambda: ["{name}.[0-9]*", "{name}-[0-9]*"],
        description="What files are called, in the same folder, that the file has been rotated to; `{name}` is its "
        "name, `*` any run of characters. Compressed ones cannot be read on.",
    )
    on_gap: Literal["stop", "continue"] = Field(
        "stop",
        description="When the file that was read last is gone: stop, or record a gap in the log and go on at the "
        "begin of the file.",
    )
    on_exit: Literal["restart", "stop"] = Field(
        "restart", description="What to do when the process has ended: start another one, or stop."
    )
    line_bytes_max: int = Field(1 << 20, ge=16, le=64 << 20, description="Longest line, in bytes.")
    group_bytes_max: int = Field(4 << 20, ge=1024, le=64 << 20, description="Most bytes of lines in one transaction.")
    poll_ms: int = Field(100, ge=1, le=60_000, description="How often a file is looked at, in milliseconds.")
    rotate_wait_ms: int = Field(
        2_000,
        ge=0,
        le=600_000,
        description="How long a file that was rotated away must not have grown before the next one is read.",
    )
    restart_ms_min: int = Field(1_000, ge=1, le=600_000, description="First wait before a process is started again.")
    restart_ms_max: int = Field(
        60_000, ge=1, le=3_600_000, description="Longest such wait; each is twice the last, until one has run as long."
    )

    @field_validator("command")
    @classmethod
    def _is_command(cls, command: list[str] | None) -> list[str] | None:
        if command is not None and (not command[0] or any("\0" in word for word in command)):
            raise ValueError("expected a program and its arguments")
        return command

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.path is None) == (self.command is None):
            raise ValueError("`path` or `command`: give one of them")
        if self.environment and self.command is None:
            raise ValueError("`environment` is of use with `command` only")
        if not self.selects(self.table):
            raise ValueError(f"`tables`: selects none of {self.table}")
        return self
