"""The relay's configuration: one YAML file, whose sections are the models of this module."""

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from databus.core import ConfigError, InputError, MalformedRequest
from databus.filters import StreamFilter, TableRule
from databus.formats import has_reference, line_of, lines_in, lines_of, load_yaml, substitute
from databus.log import LogConfig
from databus.relay._avro_registry import Compatibility
from databus.relay._grant import ALL, Grant, Right
from databus.sources import SourceConfig, parse_source

PORT: Final = 11115
_TOKENS_MAX: Final = 8
_TOKEN_LENGTH_MIN: Final = 8
_SECRET_WORDS: Final = ("password", "passwd", "secret", "token", "credential", "private_key")
_HIDDEN: Final = "(hidden)"


class CaptureConfig(BaseModel):
    """How sources are read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    poll_ms: int = Field(
        250, ge=1, le=10_000, description="How long a source waits for a change before the loop looks around."
    )
    progress_ms: int = Field(
        10_000,
        ge=100,
        le=3_600_000,
        description="How often a source that is idle, paused, waiting or suspended writes its last commit frame again, "
        "so that consumers see that the relay is alive.",
    )
    retry_ms_min: int = Field(100, ge=1, le=60_000, description="First wait after an error that waiting may cure.")
    retry_ms_max: int = Field(30_000, ge=1, le=3_600_000, description="Longest such wait; each is twice the last.")


class ServeConfig(BaseModel):
    """How consumers are served."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    streams_max: int = Field(
        2_000,
        ge=1,
        le=100_000,
        description="Streams and long polls at once; the next gets 429. A member of a group has one for each partition "
        "it holds, and one for its calls.",
    )
    connections_max: int = Field(
        4_000,
        ge=1,
        le=1_000_000,
        description="Connections at once that have asked something; a request on one more gets 429, unless it is for "
        "/admin, /metrics or /controlSources.",
    )
    silent_max: int = Field(
        512,
        ge=1,
        le=1_000_000,
        description="Connections at once that have not asked anything yet, or without the token. For one more, the "
        "oldest of the address that has the most is closed.",
    )
    request_ms_max: int = Field(
        10_000,
        ge=10,
        le=3_600_000,
        description="How long the first request of a connection, or a form, may take to come.",
    )
    idle_ms_max: int = Field(
        75_000, ge=10, le=86_400_000, description="A connection without another request for this long is closed."
    )
    request_bytes_max: int = Field(
        64 << 10, ge=8 << 10, le=16 << 20, description="Length of a request's address, of a header or of its body."
    )
    wait_ms_max: int = Field(60_000, ge=0, le=3_600_000, description="Longest long poll.")
    write_ms_max: int = Field(
        300_000, ge=10, le=86_400_000, description="A client that reads nothing for this long is cut off."
    )
    tail_bytes_max: int = Field(
        16 << 20,
        ge=0,
        le=1 << 30,
        description="What was published last is held in memory for all who follow the end, so much for each physical "
        "source. Who cannot keep up with that reads the log's files.",
    )
    clients_max: int = Field(1_000, ge=1, le=1_000_000, description="Names of clients that statistics are kept for.")


class RegistryConfig(BaseModel):
    """The registry of Avro schemas that a relay keeps, below `/registry`, for outputs that send Avro."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compatibility: Compatibility = Field(
        Compatibility.BACKWARD, description="What a subject's next schema must be able to do, in Confluent's words."
    )


class GroupsConfig(BaseModel):
    """Durable consumers and groups: names under which a relay keeps how far consumers have come."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    coordinator: str | None = Field(
        None,
        pattern=r"^https?://[^/\s]+$",
        description="The one relay that coordinates groups, as clients reach it, such as `http://relay-a:11115`; by "
        "default the relay that is asked does. Name the same in all relays of a database: others answer with its "
        "address.",
    )
    coordinates: bool | None = Field(
        None,
        description="Whether this relay is the one that `coordinator` names. By default it finds out: the port is its "
        "own, and the host an address of this machine. Say so where that is not seen from inside, as in a container.",
    )
    lease_ms: int = Field(
        10_000,
        ge=100,
        le=600_000,
        description="How long a partition stays with a member that does not call. A member keeps the lease that it was "
        "given first, whatever is configured later.",
    )
    names_max: int = Field(
        1_000, ge=1, le=100_000, description="Groups at once; a call that would make one more gets 429."
    )
    unused_days_max: int = Field(
        7,
        ge=1,
        le=3_650,
        description="A name that was not used for so many days, counted while the relay runs, is forgotten. Who uses "
        "it later gets an error that says so, and does not start again from nothing in silence.",
    )
    call_bytes_max: int = Field(
        4 << 20, ge=1 << 10, le=64 << 20, description="Length of a member's call, or of a group that is imported."
    )
    guard_bytes_max: int = Field(
        8 << 30,
        ge=0,
        description="So much of a physical source's log is kept beyond its retention for groups with `guard`. Beyond, "
        "or where `free_bytes_min` needs the room, the guard ends, with a warning.",
    )


class TlsConfig(BaseModel):
    """The certificate that a relay shows, and whose certificates it wants to be shown. Files are in PEM."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate_file: Path = Field(
        description="The relay's certificate, and behind it those between it and its authority. It must hold the name "
        "or the address by which clients ask."
    )
    key_file: Path = Field(description="The certificate's key, without a password; for the relay's user alone.")
    client_ca_file: Path | None = Field(
        None, description="Then only clients are let in that show a certificate signed by one of these authorities."
    )

    def below(self, folder: Path) -> Self:
        """The same with relative paths made absolute."""
        paths = {name: folder / path for name, path in self if path is not None}
        return self.model_copy(update=paths)


class AccessConfig(BaseModel):
    """One token, or several, and what who holds it may do and see."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$",
        description="For logs, the audit log and statistics.",
        examples=["billing"],
    )
    token_file: Path = Field(description="File with its bearer token, as the relay's `token_file` is.")
    rights: list[Literal[Right.READ, Right.CONTROL]] = Field(
        [Right.READ],
        description="`read`: to see changes and states. `control`: to pause sources, have tables read again, register "
        "schemas. Without any, `/admin`, `/help` and `/openapi.json` are answered, as probes need it.",
    )
    tables: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None,
        description="Tables or patterns, by full name. For its holder there are no others. All by default.",
        examples=[["shop/main.*"]],
    )

    where: dict[str, str] = Field(
        default_factory=dict,
        description="By table or pattern: the [condition](filters.md) that its holder's rows meet. For it there are no "
        "others.",
        examples=[{"shop/main.orders": "region = 'CH'"}],
    )
    hide: dict[str, list[Annotated[str, Field(min_length=1)]]] = Field(
        default_factory=dict,
        description="By table or pattern: columns that do not exist for its holder. They cannot be of the key.",
        examples=[{"shop/main.users": ["ssn"]}],
    )

    @field_validator("where")
    @classmethod
    def _check_where(cls, value: dict[str, str]) -> dict[str, str]:
        try:
            StreamFilter.parse(filters={table: {"where": condition} for table, condition in value.items()})
        except MalformedRequest as error:
            raise ValueError(str(error).removeprefix("filters: ")) from None
        return value

    @property
    def grant(self) -> Grant:
        """What it allows."""
        rules = (
            *(TableRule(table, where=condition) for table, condition in self.where.items()),
            *(TableRule(table, hide=tuple(columns)) for table, columns in self.hide.items()),
        )
        return Grant(self.name, frozenset(self.rights), None if self.tables is None else tuple(self.tables), rules)


_Physical = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


class BootstrapAt(BaseModel):
    """The service that has what has left the logs; see [bootstrap](bootstrap.md)."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(
        pattern=r"^https?://[^/,\s]+/?$",
        description="Its address. The answer to a position that has left a log names it, and clients go on "
        "there with the token that they show this relay.",
        examples=["http://bootstrap.internal:11111"],
    )


class RelayConfig(BaseModel):
    """A relay: where it listens, where its logs are, what it captures."""

    model_config = ConfigDict(extra="forbid")

    listen: str = Field(
        f"127.0.0.1:{PORT}", description="Address and port; port 0 takes a free one and tells it in `relay.json`."
    )
    folder: Path = Field(Path(".databus/relay"), description="Where the logs are.")
    token_file: Path | None = Field(
        None,
        description="File with the bearer token that every request must carry; needed beyond the loopback. It is read "
        "again when it changes. While a token is being replaced it holds both, a line each.",
    )
    access: list[AccessConfig] = Field(
        default_factory=list,
        description="Instead of `token_file`: several tokens, and what who holds them may do and see.",
    )
    tls: TlsConfig | None = Field(
        None, description="Answer by `https://` alone, with this certificate. Changed files are used within seconds."
    )
    log: LogConfig = Field(default_factory=LogConfig, description="The logs: segments, retention, durability.")
    capture: CaptureConfig = Field(default_factory=CaptureConfig, description="How sources are read.")
    serve: ServeConfig = Field(default_factory=ServeConfig, description="How consumers are served.")
    groups: GroupsConfig = Field(
        default_factory=GroupsConfig, description="Durable consumers and groups: who coordinates them, leases, limits."
    )
    bootstrap: BootstrapAt | None = Field(
        None, description="Where what has left the logs is had. Without it, such a position is an error."
    )
    registry: RegistryConfig = Field(default_factory=RegistryConfig, description="The registry of Avro schemas.")
    sources: dict[_Physical, SerializeAsAny[SourceConfig]] = Field(
        description="The physical sources, by name.", examples=[{"shop": {"type": "sqlite", "path": "shop.db"}}]
    )

    _written: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _file: Path | None = PrivateAttr(None)
    _folder: Path = PrivateAttr(default_factory=Path)

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        address_of(value)
        return value

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        if self.access and self.token_file is not None:
            raise ValueError(
                "token_file, access: both say who may ask; give one. A token that may do all is an entry of `access` "
                "with `rights: [read, control]`"
            )
        for field in ("name", "token_file"):
            given = [str(getattr(entry, field)) for entry in self.access]
            twice = next((value for value in given if given.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"access: two have the {field} {twice}; what either may do would be unclear")
        return self

    @property
    def file(self) -> Path | None:
        """The file that says so, for who has to type its name; None where there is none."""
        return self._file

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind to."""
        return address_of(self.listen)

    @property
    def token_files(self) -> dict[Path, Grant]:
        """The files with bearer tokens, and what these allow; none where everybody of this machine may ask."""
        if self.token_file is not None:
            return {self.token_file: ALL}
        return {entry.token_file: entry.grant for entry in self.access}

    @property
    def operator_token_file(self) -> Path | None:
        """The file whose token may do most, for commands that are run beside the relay."""
        ranked = sorted(self.token_files.items(), key=lambda item: (item[1].is_limited, -len(item[1].rights)))
        return ranked[0][0] if ranked else None

    def below(self, folder: Path) -> Self:
        """The same with files whose relative paths start there."""
        at = None if self.token_file is None else folder / self.token_file
        access = [entry.model_copy(update={"token_file": folder / entry.token_file}) for entry in self.access]
        tls = None if self.tls is None else self.tls.below(folder)
        return self.model_copy(update={"token_file": at, "access": access, "tls": tls})

    def check_tokens(self) -> None:
        """Raise `ConfigError` if there are no tokens where they are needed."""
        host = self.address[0]
        if not self.token_files and not is_loopback(host):
            raise ConfigError(
                f"listen: {host} can be reached from other machines; set token_file, or listen on 127.0.0.1"
            )

    def shown(self) -> dict[str, Any]:
        """As JSON for `/config`, without secrets: references as written, nothing under a name that sounds secret."""
        shown: dict[str, Any] = _hide(self.model_dump(mode="json"), self._written)
        return shown

    def take_sources(self, other: "RelayConfig") -> None:
        """Have the sources of another file, and nothing else of it."""
        self.sources = other.sources
        self._written = {**self._written, "sources": other._written.get("sources", {})}  # noqa: SLF001 - of this class

    def read_again(self) -> "RelayConfig":
        """What its file says now. Paths are made as they were at first, so that those of the same file are equal."""
        if self._file is None:
            raise InputError("this relay was started without a file; there is nothing to read again")
        return load_relay(self._file, folder=self._folder)

    def note_file(self, file: Path | None) -> None:
        """Remember which file says it: a relay's, or that of a pipeline."""
        self._file = None if file is None else file.absolute()

    def written_as(self, value: Mapping[str, Any], folder: Path) -> None:
        """Remember how it is written: references not replaced. folder: where its paths start."""
        self._written = dict(value)
        self._folder = folder


def tokens_in(file: Path, option: str) -> tuple[str, ...]:
    """The bearer tokens in a file, a line each. option: that names it. Raises `ConfigError` if it is no good."""
    try:
        lines = file.read_text().split("\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"{option}: {file}: {reason}") from error
    tokens = tuple(line.strip() for line in lines if line.strip())
    if not 0 < len(tokens) <= _TOKENS_MAX or not all(map(_is_token, tokens)):
        raise ConfigError(
            f"{option}: {file}: a token is 8 or more ASCII characters without blanks; while one is being replaced "
            f"there are several, a line each, and {_TOKENS_MAX} at most"
        )
    return tokens


def address_of(listen: str) -> tuple[str, int]:
    """Split `host:port`; IPv6 in brackets. Raises ValueError for anything else.

    >>> address_of("[::1]:0")
    ('::1', 0)
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{listen!r} is not host:port, such as 127.0.0.1:11115, with a port up to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


@lru_cache(256)  # each request asks, of its Host and of its peer
def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to what is bound there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hide(value: Any, written: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        beside = written if isinstance(written, Mapping) else {}
        return {key: _hide(item, beside.get(key), str(key)) for key, item in value.items()}
    if isinstance(value, list):
        beside_list = written if isinstance(written, list) and len(written) == len(value) else [None] * len(value)
        return [_hide(item, other, name) for item, other in zip(value, beside_list, strict=True)]
    if has_reference(written):
        return written
    if value is not None and name != "token_file" and any(word in name.lower() for word in _SECRET_WORDS):
        return _HIDDEN
    return value


def parse_relay(value: Mapping[str, Any], *, folder: Path, where: str = "", file: Path | None = None) -> RelayConfig:
    """Check a relay's configuration as it was read from YAML (from `file`), references not yet replaced.

    folder: where relative paths start. Raises `ConfigError` with a line for each thing
    that is wrong.
    """
    config = checked_relay(substitute(dict(value), where, folder=folder), folder=folder, where=where, file=file)
    config.written_as(value, folder)
    return config


def checked_relay(value: Mapping[str, Any], *, folder: Path, where: str = "", file: Path | None = None) -> RelayConfig:
    """Like `parse_relay`, of values as they are meant: nothing in them is a reference."""
    replaced = dict(value)
    lines: list[str] = []
    sources: dict[str, SourceConfig] = {}
    given = replaced.get("sources")
    if isinstance(given, dict):
        for name, options in given.items():
            try:
                sources[name] = parse_source(options, f"{where}.sources.{name}" if where else f"sources.{name}", folder)
            except ConfigError as error:
                lines.append(str(error))
        replaced["sources"] = sources
        if not given:
            lines.append(f"{where}.sources: at least one is needed" if where else "sources: at least one is needed")
    try:
        config = RelayConfig.model_validate(replaced)
    except ValidationError as error:
        lines = lines_of(error, RelayConfig, where) + lines
    if lines:
        raise ConfigError("\n".join(lines))
    config = config.below(folder)
    config.folder = folder / config.folder
    config.note_file(file)
    return config


def load_relay(path: Path, *, folder: Path | None = None) -> RelayConfig:
    """Read a relay's configuration file; relative paths in it start at its folder. folder: that, in other words."""
    value = load_yaml(path, "`databus init --relay` writes one to begin with")
    if value.keys() & {"inputs", "outputs"}:
        raise ConfigError(
            f"{path}: this is a pipeline's file; `databus run` runs it, with a relay of its own for its `sources`"
        )
    try:
        return parse_relay(value, folder=path.parent if folder is None else folder, file=path)
    except ConfigError as error:
        lines = lines_in(path)
        placed = [f"{_place(path, line, lines)}: {line}" for line in str(error).splitlines()]
        raise ConfigError("\n".join(placed)) from error


def _place(path: Path, sentence: str, lines: Mapping[str, int]) -> str:
    """File and line of a sentence that begins with its path in the file."""
    line = line_of(sentence.partition(": ")[0], lines)
    return str(path) if line is None else f"{path}:{line}"


def _is_token(text: str) -> bool:
    return len(text) >= _TOKEN_LENGTH_MIN and text.isascii() and not any(c.isspace() for c in text)
