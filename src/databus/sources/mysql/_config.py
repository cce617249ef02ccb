"""Options of the MySQL and MariaDB source."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from databus.sources._config import LocalPath, SourceConfig, SourceName
from databus.sources.mysql._charsets import canonical_charset

PORT: Final = 3306
_EVENT_HEAD_BYTES: Final = 1 << 20  # more than an event has besides its rows
_START: Final = re.compile(r"earliest|latest|gtid:.*|[^:/]+\.\d+:\d+|\d{4}-\d\d-\d\dT.*")


def _address(host: str) -> str:
    name, _, port = host.rpartition(":") if ":" in host else (host, "", str(PORT))
    if not name or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{host!r} is not host or host:port")
    return f"{name}:{port}"


def check_start(text: str) -> str:
    """`text` if it is a place to start at. Raises ValueError."""
    if not _START.fullmatch(text):
        raise ValueError(
            f"{text!r} is none of earliest, latest, gtid:SET, FILE:POSITION (mysql-bin.000004:157), or a time "
            f"(2026-11-21T12:00:00Z)"
        )
    return text


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _check_charsets(charsets: dict[str, str]) -> dict[str, str]:
    canonical = {database: canonical_charset(name) for database, name in charsets.items()}
    unknown = [f"{charsets[database]!r}" for database, name in canonical.items() if name is None]
    if unknown:
        raise ValueError(f"no character sets of MySQL or MariaDB: {', '.join(unknown)}")
    return {database: name for database, name in canonical.items() if name is not None}


Address = Annotated[str, AfterValidator(_address)]


class _LogConfig(SourceConfig):
    """What options of servers and of files have in common."""

    def unmatched(self, captured: Sequence[str]) -> Mapping[str, str]:
        """See `SourceConfig.unmatched`. An entry that differs from a captured table's name in case only is matched: the
        server's `lower_case_table_names` decides whether such two names are one table.
        """
        absent = super().unmatched(captured)
        folded = self.model_copy(update={"tables": [entry.lower() for entry in absent]})
        unmatched = SourceConfig.unmatched(folded, [table.lower() for table in captured])
        return {entry: option for entry, option in absent.items() if entry.lower() in unmatched}

    @property
    def merging(self) -> Sequence[str]:
        """See `SourceConfig.merging`."""
        lossy = {"zero_dates": "null", "invalid_text": "replace", "on_large_row": "marker"}
        return [f"{option}: {value}" for option, value in lossy.items() if getattr(self, option) == value]


class MysqlConfig(_LogConfig):
    """A MySQL or MariaDB server, captured from its binary log as a replica does."""

    type: Literal["mysql"] = Field("mysql", description="`mysql`, for MariaDB too.")
    hosts: Annotated[list[Address], BeforeValidator(_listed, json_schema_input_type=str | list[str])] = Field(
        min_length=1,
        max_length=16,
        description="Servers that hold the same data, as `host` or `host:port` (one may stand without a list); the "
        "first that answers and has what is needed is captured, the others when it is gone (needs GTIDs).",
        examples=[["db1:3306", "db2:3306"]],
    )
    user: str = Field(description="A user with REPLICATION SLAVE, REPLICATION CLIENT and SELECT.", examples=["databus"])
    password: SecretStr = Field(SecretStr(""), description="Its password; better `password_file` or `${VAR}`.")
    password_file: LocalPath | None = Field(None, description="File that holds the password, read at each connect.")
    tls: Literal["off", "on", "unverified"] = Field(
        "off", description="`on` verifies the server's certificate and name; `unverified` encrypts only."
    )
    tls_ca: LocalPath | None = Field(None, description="Certificates to trust, in PEM; without it, the system's.")
    tls_server_name: str | None = Field(None, description="The name in the server's certificate, if not the host's.")
    server_id: int | None = Field(
        None,
        ge=1,
        le=2**32 - 1,
        description="Our id as a replica; no other replica may have it. Without it, one made of the source's name and "
        "the relay's log.",
    )
    start: Annotated[str, AfterValidator(check_start)] = Field(
        "latest",
        description="Where a new log begins: `earliest`, `latest`, `gtid:SET`, `FILE:POSITION` or a time in ISO form. "
        "Anything but `latest` needs `snapshot: never`.",
    )
    snapshot: Literal["initial", "never", "when_needed", "only"] = Field(
        "initial",
        description="Whether rows that are there are read: when a new log begins; never; also when the position was "
        "lost; or nothing else.",
    )
    where: dict[SourceName, str] = Field(
        default_factory=dict,
        description="By table: a condition on the rows that a snapshot reads; the log is not narrowed by it.",
        examples=[{"shop.orders": "created_at > '2026-01-01'"}],
    )
    on_gap: Literal["stop", "resnapshot"] = Field(
        "stop",
        description="When the server has lost what we still need: stop, or record a gap and read the tables again.",
    )
    on_class3: Literal["resnapshot", "stop"] = Field(
        "resnapshot", description="After DDL that may have changed data unseen: read the table again, or stop."
    )
    unknown_ddl: Literal["reread", "stop"] = Field(
        "reread",
        description="After DDL that is not understood: read the tables that it names again, or stop. Capture always "
        "stops where it cannot tell which tables, and with `on_class3: stop`.",
    )
    zero_dates: Literal["error", "null", "text"] = Field(
        "error",
        description="What a zero date (0000-00-00, 2020-00-10) becomes, which no calendar has: an error, null (never "
        "in the key), or, as all values of all DATE, DATETIME and TIMESTAMP columns, the text that the server shows.",
    )
    types: dict[SourceName, dict[str, Literal["string"]]] = Field(
        default_factory=dict,
        description="By table and column: `string` to capture it as the text that the server shows, exactly (dates, "
        "times, years, decimals, integers, bits as a number). After a change of it the table is read again.",
        examples=[{"shop.orders": {"due": "string"}}],
    )
    invalid_text: Literal["error", "replace"] = Field(
        "error", description="What bytes become that are not valid in their character set: an error, or U+FFFD."
    )
    row_bytes_max: int = Field(64 << 20, ge=1024, le=1 << 30, description="Largest row, in bytes of the log.")
    on_large_row: Literal["stop", "marker"] = Field(
        "stop",
        description="What becomes of a row above `row_bytes_max`: an error, or its largest values (text, bytes, JSON; "
        "never the key's) become `__databus_value_omitted__` and their number of bytes.",
    )
    group_bytes_max: int = Field(4 << 20, ge=1024, le=256 << 20, description="Where a group ends, in bytes of rows.")
    buffer_bytes_max: int = Field(
        32 << 20, ge=1 << 20, le=1 << 30, description="What may have been read from the server and not yet be decoded."
    )
    progress_ms: int = Field(
        1_000, ge=10, le=3_600_000, description="How often a commit is logged while only other tables change."
    )
    progress_bytes: int = Field(
        16 << 20, ge=1024, le=1 << 34, description="After how many bytes of the server's log too."
    )
    heartbeat_ms: int = Field(
        1_000,
        ge=10,
        le=60_000,
        description="How often an idle server sends a heartbeat; three missed end the connection. MySQL 5.7: 1,000+.",
    )
    connect_ms_max: int = Field(10_000, ge=1, le=600_000, description="How long connecting may take.")
    chunk_rows_max: int = Field(16_384, ge=1, le=1 << 20, description="Rows of one snapshot chunk.")
    chunk_bytes_max: int = Field(8 << 20, ge=1024, le=256 << 20, description="Bytes of one snapshot chunk.")
    chunk_keys_max: int = Field(
        1 << 20, ge=1, le=1 << 26, description="Keys that may change while a chunk waits for its place in the log."
    )
    snapshot_connections: int = Field(2, ge=1, le=64, description="Connections that read chunks at the same time.")
    snapshot_tables_max: int = Field(
        8, ge=1, le=256, description="Tables that are read at the same time; the others wait for their turn."
    )
    lock_tables_without_key: bool = Field(
        False,
        description="Read a table that has no key under `LOCK TABLES`, rather than again and again while it is "
        "written; its writers wait until it is read.",
    )
    history_tables_max: int = Field(100_000, ge=1, le=10_000_000, description="Tables whose definitions are followed.")
    prepared_bytes_max: int = Field(
        16 << 30, ge=1 << 20, le=1 << 44, description="What XA transactions may take that are prepared and not decided."
    )
    retention_warn_ms: int = Field(
        6 * 3_600_000, ge=0, le=2**53, description="Warn when the server purges what we need in less than this."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start != "latest" and self.snapshot in {"initial", "only"} and "snapshot" in self.model_fields_set:
            raise ValueError("start: a snapshot is of now; with `start` other than latest say `snapshot: never`")
        if self.start != "latest" and "snapshot" not in self.model_fields_set:
            self.snapshot = "never"
        if self.password_file is not None and self.password.get_secret_value():
            raise ValueError("password and password_file: give one of them")
        return self

    @property
    def row_bytes_read_max(self) -> int:
        """How large a row, or both images of an updated one, may be where it is read, whatever consumers get of it."""
        return max(2 * self.row_bytes_max, self.buffer_bytes_max)

    @property
    def event_bytes_max(self) -> int:
        """How large an event of the log may be."""
        return self.row_bytes_read_max + _EVENT_HEAD_BYTES


class BinlogConfig(_LogConfig):
    """A binary log file, or a folder of them, without a server: for replay, for tests, for archives."""

    type: Literal["binlog"] = Field("binlog", description="`binlog`.")
    path: LocalPath = Field(description="A binary log file, or a folder of them.", examples=["/backup/binlogs"])
    definitions: LocalPath | None = Field(
        None,
        description="JSON file with the list of the tables' definitions as of the first file's begin, where the log "
        "itself does not name its columns (`binlog_row_metadata` other than FULL).",
    )
    unfinished_files: Literal["stop", "pass"] = Field(
        "stop",
        description="What to do about a file that ends without naming the next one, as a crash of the server leaves "
        "it, where no GTIDs prove that nothing is missing: the end of a copy that was cut looks the same.",
    )
    database_charsets: Annotated[dict[str, str], AfterValidator(_check_charsets)] = Field(
        default_factory=dict,
        description="Default character sets of the databases as of the first file's begin, for tables made later on "
        "that do not name theirs. A database whose CREATE DATABASE is in the log needs none.",
        examples=[{"shop": "utf8mb4"}],
    )
    explicit_defaults_for_timestamp: bool | None = Field(
        None,
        description="The server's setting of that name. MariaDB's log does not have it; without this option, a "
        "TIMESTAMP column that depends on it counts as not understood.",
    )
    system_time_zone: str | None = Field(
        None,
        description="The server's setting of that name, which no log has. Where it is not `UTC`, capture stops at an "
        "ALTER TABLE that copies a TIMESTAMP under `time_zone=SYSTEM`: MySQL moves times then that come twice.",
    )
    lower_case_table_names: Literal[0, 1, 2] | None = Field(
        None,
        description="The server's setting of that name, which no log has. Without this option, capture stops where "
        "two names of tables differ only in upper and lower case.",
    )
    zero_dates: Literal["error", "null", "text"] = Field("error", description="As for `mysql`.")
    types: dict[SourceName, dict[str, Literal["string"]]] = Field(
        default_factory=dict, description="As for `mysql`; to change it, begin a new log."
    )
    invalid_text: Literal["error", "replace"] = Field("error", description="As for `mysql`.")
    on_class3: Literal["stop"] = Field(
        "stop",
        description="After DDL that may have changed data unseen, a file can only stop: there is no table to read.",
    )
    row_bytes_max: int = Field(64 << 20, ge=1024, le=1 << 30, description="Largest row, in bytes of the log.")
    on_large_row: Literal["stop", "marker"] = Field("stop", description="As for `mysql`.")
    group_bytes_max: int = Field(4 << 20, ge=1024, le=256 << 20, description="Where a group ends, in bytes of rows.")
    progress_ms: int = Field(1_000, ge=10, le=3_600_000, description="As for `mysql`.")
    progress_bytes: int = Field(16 << 20, ge=1024, le=1 << 34, description="As for `mysql`.")
    history_tables_max: int = Field(100_000, ge=1, le=10_000_000, description="As for `mysql`.")
    prepared_bytes_max: int = Field(16 << 30, ge=1 << 20, le=1 << 44, description="As for `mysql`.")
