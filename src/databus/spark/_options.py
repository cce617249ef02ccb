"""Options of the data source, each declared once: parsing, check and the reference page come from here."""

import difflib
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from databus.core import Checkpoint, ConfigError, MalformedRequest, is_pattern, split_names, time_us
from databus.filters import StreamFilter
from databus.link import ADDRESSES, Access

_STARTS: Final = ("startingVersion", "startingTimestamp", "startingCheckpoint")
_KEYWORDS: Final = ("beginning", "earliest", "latest")
_SECRETS: Final = frozenset({"token", "password", "secret"})


class DatabusOptions(BaseModel):
    """Options of `spark.read.format("databus")` and `spark.readStream.format("databus")`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)

    relay: str = Field(
        description="Address of the relay; or of several relays of one database, with commas between. The first that "
        "answers is used; a query that has to go on at another fails, and goes on there when it is started again.",
        examples=["http://127.0.0.1:11115", "http://relay-a:11115,http://relay-b:11115"],
        pattern=ADDRESSES,
    )
    shape: Literal["typed", "frames", "ranges"] = Field(
        description="`typed`: one table as typed columns. `frames`: any number of tables as runs of whole frames. "
        "`ranges`: as frames, but a row only says what range it stands for, and the sink reads it from the relay."
    )
    sources: str = Field(
        "",
        description="Tables, separated by commas: full names, short ones where they are unique, ids, or with "
        "shape=frames or ranges patterns with `*`. shape=typed takes one; the others read all without it.",
        examples=["shop/main.orders", "main.orders", "shop/main.*"],
    )
    where: str | None = Field(
        None,
        description="Only rows for which this condition holds; the relay leaves out the others. See docs/filters.md.",
        examples=["total >= 100 AND region = 'CH'"],
    )
    columns: str | None = Field(
        None, description="Only these columns, separated by commas, and those of the key.", examples=["id,total"]
    )
    filters: str | None = Field(
        None,
        description="Both by table or pattern, as JSON, where tables differ.",
        examples=['{"shop/main.orders": {"where": "total >= 100", "columns": ["id", "total"]}}'],
    )
    partition: str | None = Field(
        None, description="`i/n`: only rows whose key is in bucket i of n, counted from 0.", examples=["3/8"]
    )
    physical: str | None = Field(
        None, description="The physical source, where the names in `sources` leave it open.", min_length=1
    )
    meta: Literal["full", "basic"] = Field(
        "basic",
        description="With shape=typed: `full` adds `_seq`, `_txid`, `_snapshot` and `_control`, and controls as rows.",
    )
    controls: Literal["stop", "ignore"] = Field(
        "stop",
        description="With shape=typed and without meta=full: what a control other than `schema` does to the query.",
    )
    starting_version: int | Literal["beginning", "earliest", "latest"] | None = Field(
        None,
        alias="startingVersion",
        description="First `_commit_version` to read, itself included; or `beginning` (an error if the relay no longer "
        "has it), `earliest` (what it still has) or `latest` (only what comes now). Default: beginning.",
    )
    starting_timestamp: int | None = Field(
        None,
        alias="startingTimestamp",
        description="First commit time to read: ISO 8601 (UTC where it names no zone), or microseconds since 1970.",
        examples=["2026-11-21T12:00:00Z"],
    )
    starting_checkpoint: str | None = Field(
        None, alias="startingCheckpoint", description="Read after this checkpoint (JSON), as a consumer's or an offset."
    )
    ending_version: int | None = Field(
        None, alias="endingVersion", ge=0, le=2**63 - 1, description="Last `_commit_version` to read, itself included."
    )
    rows_max: int | None = Field(
        None, alias="maxRowsPerTrigger", ge=1, le=2**31 - 1, description="Most rows in a micro-batch."
    )
    bytes_max: int = Field(
        128 << 20,
        alias="maxBytesPerTrigger",
        ge=1,
        description="Most bytes of frames in a micro-batch; where rows are limited too, both hold.",
    )
    partitions: int = Field(1, ge=1, le=1024, description="Into how many contiguous ranges a batch is cut.")
    partition_bytes_min: int = Field(
        0,
        alias="partitionBytesMin",
        ge=0,
        le=2**31 - 1,
        description="A batch is cut into fewer ranges where they would be smaller than this, in bytes of frames.",
    )
    schema_fingerprint: str | None = Field(
        None,
        alias="schemaFingerprint",
        pattern=r"^[0-9a-f]{16}$",
        description="With shape=typed: read with this version of the table's schema instead of the current one.",
    )
    schema_changes: Literal["inline", "ahead"] = Field(
        "inline",
        alias="schemaChanges",
        description="With meta=full: `ahead` begins each batch that holds rows from before a change of the schema with "
        "a control of kind `schema_ahead`, which names the changes that its rows have been made through.",
    )
    look_back: Literal["state", "images", "all", "none"] = Field(
        "state",
        alias="lookBack",
        description="Where the relay has lost what is asked for and names a bootstrap service: `state` reads from "
        "there what became of the changes, `images` the same with a delete for each row that was changed (for who "
        "knows rows by another key, or chooses among them), `all` every change; with `none` the query stops. With "
        "shape=typed it is every change, or none.",
    )
    inexact: Literal["stop", "leave_out"] = Field(
        "stop",
        description="With shape=typed: what becomes of rows from before a change of the schema that cannot be made "
        "into today's exactly. `leave_out` leaves them out where a snapshot of the table follows, for a reader that "
        "keeps but the last row of each key.",
    )
    token_file: str | None = Field(
        None,
        description="File that holds the relay's token, readable by driver and executors. Default: the environment "
        "variable DATABUS_TOKEN.",
    )
    ca_file: str | None = Field(
        None,
        description="For a relay at `https://`: file with the certificate of the authority that signed the relay's, "
        "readable by driver and executors. Default: the environment variable DATABUS_CA_FILE, else what the machine "
        "trusts.",
    )
    certificate_file: str | None = Field(
        None,
        description="File with a certificate for a relay that wants to see one. Default: DATABUS_CERTIFICATE_FILE.",
    )
    key_file: str | None = Field(
        None, description="File with that certificate's key, if it is in a file of its own. Default: DATABUS_KEY_FILE."
    )
    wait_ms: int = Field(
        1_000,
        alias="waitMs",
        ge=0,
        le=10_000,
        description="How long the driver waits at the relay for rows before it says that there are none, or moves "
        "the offset over commits that hold none.",
    )
    retry_ms: int = Field(
        30_000,
        alias="retryMs",
        ge=0,
        le=600_000,
        description="How long a relay that does not answer is asked again before the query fails.",
    )

    @field_validator("starting_version", mode="before")
    @classmethod
    def _version(cls, value: Any) -> Any:
        if isinstance(value, str) and value.lstrip("-").isdigit():
            value = int(value)
        if isinstance(value, int) and not 0 <= value < 1 << 63:
            raise ValueError(f"{value} is outside 0..2^63-1")
        if isinstance(value, str) and value not in _KEYWORDS:
            raise ValueError(f"{value!r} is neither a number nor one of {', '.join(_KEYWORDS)}")
        return value

    @field_validator("starting_timestamp", mode="before")
    @classmethod
    def _timestamp(cls, value: Any) -> Any:
        return time_us(value) if isinstance(value, str) else value

    @field_validator("starting_checkpoint")
    @classmethod
    def _checkpoint(cls, value: str) -> str:
        try:
            Checkpoint.from_json(value, "startingCheckpoint")
        except MalformedRequest as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _filters(self) -> Self:
        try:
            _ = self.filter
        except MalformedRequest as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _together(self) -> Self:
        starts = (self.starting_version, self.starting_timestamp, self.starting_checkpoint)
        given = [name for name, value in zip(_STARTS, starts, strict=True) if value is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} both say where to begin; leave one out")
        if self.shape == "typed" and (len(self.names) != 1 or is_pattern(self.sources)):
            raise ValueError("shape=typed reads one table, named by the option sources")
        if self.shape != "typed":
            typed_only = {
                "meta": "basic",
                "controls": "stop",
                "schema_fingerprint": None,
                "schema_changes": "inline",
                "inexact": "stop",
            }
            for name, default in typed_only.items():
                if getattr(self, name) != default:
                    raise ValueError(f"{_spelling(name)} says something about shape=typed; leave it out")
        elif self.look_back == "images":
            raise ValueError("lookBack=images says something about shape=frames and shape=ranges; leave it out")
        if self.schema_changes == "ahead" and not self.meta_full:
            raise ValueError("schemaChanges=ahead shows changes as controls; it needs meta=full")
        first, last = self.starting_version, self.ending_version
        if isinstance(first, int) and last is not None and last < first:
            raise ValueError(f"endingVersion {last} is below startingVersion {first}")
        return self

    @property
    def access(self) -> Access:
        """The files with which the relay is asked."""
        return Access.of(self.token_file, self.ca_file, self.certificate_file, self.key_file)

    @property
    def filter(self) -> StreamFilter:
        """What the relay lets through."""
        return StreamFilter.parse(self.where, self.columns, self.filters, self.partition)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in `sources`."""
        return tuple(name for name in split_names(self.sources) if name)

    @property
    def meta_full(self) -> bool:
        """Whether controls come as rows."""
        return self.meta == "full"


def _spelling(field: str) -> str:
    return DatabusOptions.model_fields[field].alias or field


_SPELLINGS: Final = {_spelling(field).lower(): _spelling(field) for field in DatabusOptions.model_fields}


def parse_options(given: Mapping[str, str]) -> DatabusOptions:
    """Check the options as Spark hands them over, in any case. Raises `ConfigError` naming all wrong ones."""
    wrong: list[str] = []
    spelled: dict[str, str] = {}
    for key, value in given.items():
        name = _SPELLINGS.get(key.lower())
        if name is not None:
            spelled[name] = value
        elif key.lower() in _SECRETS:
            wrong.append(
                f'option "{key}": a secret in an option ends in plans and logs; use token_file or DATABUS_TOKEN'
            )
        else:
            near = difflib.get_close_matches(key.lower(), _SPELLINGS, 1)
            hint = f'did you mean "{_SPELLINGS[near[0]]}"?' if near else f"there are {', '.join(_SPELLINGS.values())}"
            wrong.append(f'option "{key}": not known; {hint}')
    for name in ("relay", "shape"):
        if name not in spelled:
            field = DatabusOptions.model_fields[name]
            wrong.append(f'option "{name}": missing; {field.description}')
    if wrong:
        raise ConfigError("; ".join(wrong))
    try:
        return DatabusOptions.model_validate(spelled)
    except ValidationError as error:
        lines = [_line_of(error) for error in error.errors()]
        raise ConfigError("; ".join(lines)) from None


def _line_of(error: Any) -> str:
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return f"options: {message}"
    return f'option "{error["loc"][0]}": {message} (found {error["input"]!r})'
