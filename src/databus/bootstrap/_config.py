"""The file of a bootstrap service, and the pipeline that it stands for."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from databus.core import ConfigError
from databus.disk import LocalLocation, Location, Storage, locate
from databus.formats import lines_of, load_yaml, substitute
from databus.link import ADDRESSES, Access, RelayClient
from databus.pipeline import state_folder
from databus.relay import AccessConfig, RelayConfig, ServeConfig, TlsConfig, address_of
from databus.stores import BATCH_ROWS

LOG: Final = "log"
STATE: Final = "state"
UNNAMED_HOURS: Final = 25
"""How long a file stays that no table and no state names: longer than anybody takes to note a state, or to read."""
_REST: Final = 9  # so that merging takes a tenth of the time at most
_BELOW: Final = "{physical}/{db}.{table}"


class RelayAt(BaseModel):
    """The relay whose changes are kept."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(
        pattern=ADDRESSES, description="Its address, or those of several of one database, with commas between."
    )
    token_file: Path | None = Field(None, description="File with its token.")
    ca_file: Path | None = Field(None, description="For a relay at `https://`: file with the authority's certificate.")


class KeepSection(BaseModel):
    """Which states are kept: all of the last hour, and of those before one an hour, one a day, one a month."""

    model_config = ConfigDict(extra="forbid")

    hours: int = Field(24, ge=1, le=744, description="For how many hours one state an hour is kept.")
    days: int = Field(7, ge=0, le=366, description="For how many days one state a day is kept.")
    months: int = Field(0, ge=0, le=120, description="For how many months, of 31 days, one state a month is kept.")


class BootstrapSection(BaseModel):
    """What is kept, where, and who is served."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(
        description="Folder of the stores, here or in an object store: `log/`, `state/` and `notes/` are below it.",
        examples=["lake/bootstrap", "s3://lake/bootstrap"],
    )
    tables: list[str] = Field(
        default_factory=lambda: ["*"], min_length=1, description="Which tables are kept.", examples=[["shop/*"]]
    )
    merge_ms: int = Field(
        60_000,
        ge=0,
        le=3_600_000,
        description="Least time between the starts of two merges of the state store, in milliseconds. A merge also "
        "waits for nine times what the last one took; with 0, merges follow each other at once. A state is noted after "
        "each.",
    )
    keep: KeepSection = Field(default_factory=KeepSection, description="Which states are kept.")
    log_days: int | None = Field(
        None,
        ge=1,
        le=36_500,
        description="How many days the log store goes back, at least; by default for ever. Then a consumer that was "
        "away for longer is given tables whole, and `look_back=all` from before answers 410.",
    )
    listen: str = Field("127.0.0.1:11111", description="Address and port of the server; port 0 takes a free one.")
    token_file: Path | None = Field(
        None,
        description="File with the bearer token that every request must carry; needed beyond the loopback. Clients "
        "show the one that they show the relay.",
    )
    access: list[AccessConfig] = Field(
        default_factory=list,
        description="Instead of `token_file`: several tokens, and what who holds them may see. Write the relay's own "
        "`access` here: the service does not ask the relay who may see what.",
    )
    tls: TlsConfig | None = Field(None, description="Answer by `https://` alone, with this certificate.")
    answer_bytes_max: int | None = Field(
        None, ge=1, description="Most bytes that an answer may have to read; others get 413, with the estimate."
    )
    answers_max: int = Field(16, ge=1, le=1000, description="How many answers may be given at once; others get 429.")
    serve: ServeConfig = Field(default_factory=ServeConfig, description="Limits of the server, as the relay's.")

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        address_of(value)
        return value


class BootstrapFile(BaseModel):
    """A bootstrap service's file."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        "bootstrap",
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$",
        description="Its name; the stores know who fills them by this.",
    )
    relay: RelayAt = Field(description="The relay whose changes are kept.")
    bootstrap: BootstrapSection = Field(description="The stores and the server.")
    spark: dict[str, Any] = Field(default_factory=dict, description="As in a pipeline's file.")
    storage: dict[str, Any] = Field(default_factory=dict, description="As in a pipeline's file.")


@dataclass(frozen=True)
class BootstrapConfig:
    """A file, read and checked. written: as it stands there, references not replaced."""

    path: Path
    file: BootstrapFile
    written: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self.path.parent.absolute()

    @property
    def name(self) -> str:
        """The service's name, and its pipeline's."""
        return self.file.name

    @property
    def options(self) -> BootstrapSection:
        """The stores and the server."""
        return self.file.bootstrap

    @property
    def root(self) -> Location:
        """The folder of the stores."""
        return locate(self.options.path, self.folder, Storage(self.file.storage))

    @property
    def pipeline_path(self) -> Path:
        """The file of the pipeline, beside this one, so that its paths mean the same. It is written by who has the lock
        of `state`, and named as that is: no two services that run have one file.
        """
        return self.folder / f".{self.name}.pipeline.yml"

    @property
    def state(self) -> Path:
        """The state folder of the pipeline."""
        return state_folder(self.folder, self.name)

    @property
    def server(self) -> RelayConfig:
        """As the relay's HTTP server takes it."""
        options = self.options
        given = {name: getattr(options, name) for name in ("listen", "token_file", "access", "tls", "serve")}
        return RelayConfig(**given, sources={}).below(self.folder)

    def relay(self, address: str | None = None) -> RelayClient:
        """The relay, to be asked; where there are several, at one address."""
        relay = self.file.relay
        files = (relay.token_file, relay.ca_file, None, None)
        access = Access.of(*(None if file is None else self.folder / file for file in files))
        return RelayClient(address or relay.url, access=access, name=f"{self.name}-bootstrap")

    def pipeline(self, keyless: Collection[str]) -> dict[str, Any]:
        """The pipeline that fills the stores. keyless: tables, by full names, of which there can be no mirror."""
        tables, path = self.options.tables, self.options.path.rstrip("/")
        own = {"type": "databus", "tables": tables}
        relay = {name: value for name, value in self.written["relay"].items() if value is not None}
        shared = {name: self.written[name] for name in ("spark", "storage") if self.written.get(name)}
        return {
            "name": self.name,
            "relay": relay,
            **shared,
            "inputs": {
                "changes": {**own, "look_back": False},  # it would ask itself for what it has not
                # what the relay has lost before the state store had it stands in the log store: it asks this service
                "keyed": {**own, "exclude": sorted(keyless), "look_back": "all"},
            },
            "outputs": {
                LOG: {
                    "type": "delta",
                    "from": "changes",
                    "mode": "history",
                    "controls": "all",
                    "retype": "new_column",
                    "guard": True,
                    "path": f"{path}/log/{_BELOW}",
                    "pins": path,
                },
                STATE: {
                    "type": "delta",
                    "from": "keyed",
                    "mode": "mirror",
                    "path": f"{path}/state/{_BELOW}",
                    "trigger_ms": self.options.merge_ms,
                    "rest": _REST if self.options.merge_ms else 0,
                    "guard": True,
                    "group_rows_max": BATCH_ROWS,
                    "pins": path,
                    "vacuum_hours": UNNAMED_HOURS,
                },
            },
        }

    def write_pipeline(self, keyless: Collection[str]) -> Path:
        """Write the pipeline's file; returns where it is. The caller has the lock of `state`."""
        text = json.dumps(self.pipeline(keyless), indent=1)
        LocalLocation(self.pipeline_path).write(f"# Made of {self.path.name}; changed there.\n{text}\n".encode())
        return self.pipeline_path


def load_bootstrap(path: Path) -> BootstrapConfig:
    """Read the file. Raises `ConfigError` with a line for each thing that is wrong."""
    written = load_yaml(path, "docs/bootstrap.md shows what is in the file of a bootstrap service")
    try:
        file = BootstrapFile.model_validate(substitute(dict(written), "", folder=path.parent))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines_of(error, BootstrapFile))) from None
    config = BootstrapConfig(path, file, written)
    config.server.check_tokens()
    return config
