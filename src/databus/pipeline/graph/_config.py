"""The configuration of a pipeline: from YAML to typed objects, with all errors at once.

The YAML is parsed, then references are replaced in text values, then the model of its type checks each section. Nothing
here imports pyspark. Start with `read_pipeline`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StringConstraints, ValidationError

from databus.core import ConfigError, InputError, ServiceUnavailable
from databus.disk import SCHEMES, Storage
from databus.formats import hint_for, lines_of, load_yaml, path_of, substitute
from databus.link import ADDRESSES
from databus.pipeline.graph._registry import NodeKind, plugin_class, plugin_types
from databus.plugins import Output, OutputContext
from databus.sources import SourceConfig, parse_source

if TYPE_CHECKING:
    from databus.link import Access, RelayClient
    from databus.schema import TableSchema


TESTS_MAX: Final = 1_000
ROWS_MAX: Final = 10_000

_Names = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class FilterTest(BaseModel):
    """Rows of a table, and the rows expected from them at an output or behind a filter; `databus test` runs it."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    table: str = Field(description="The table, as `db.table` or `physical/db.table`.", examples=["main.orders"])
    columns: dict[str, str] | None = Field(
        None,
        min_length=1,
        description="Name and type of each column. Not needed for a table in a SQLite file on this machine, or one "
        "that the relay has captured.",
        examples=[{"id": "int64", "status": "string"}],
    )
    key: _Names = Field(default_factory=list, description="With `columns`: the table's key.", examples=["id"])
    from_: str | None = Field(
        None, alias="from", description="Name of the input at which the rows begin, if several lead to `to`."
    )
    to: str = Field(
        description="Where the rows are compared: the name of an output, or of a filter (`name.branch` of a route).",
        examples=["copy", "large"],
    )
    rows: list[dict[str, Any]] = Field(
        max_length=ROWS_MAX,
        description="The rows, in order. `_change_type` is `insert` unless a row says otherwise; an update is two: "
        "`update_preimage` and `update_postimage`. Columns that a row does not name are NULL.",
        examples=[[{"id": 1, "status": "open"}, {"_change_type": "delete", "id": 1, "status": "open"}]],
    )
    expect: list[dict[str, Any]] = Field(
        max_length=ROWS_MAX,
        description="The expected rows, in order, in the same form. Columns that a row does not name are expected to "
        "be NULL; those of the bus are compared only if a row names them.",
    )


NODES_MAX: Final = 300
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TOP_LEVEL: Final = re.compile(r"^(name|state):[ \t]*[\"']?([^\"'#\n]*[^\"'#\s])", re.MULTILINE)
"""The lines that name the state folder, in a file that is not valid YAML at the moment."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake in a configuration: where, and what to do. A warning does not keep the pipeline from running."""

    path: str
    message: str
    is_warning: bool = False
    is_unset: bool = field(default=False, compare=False)
    """A reference that has no value."""
    line: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def in_file(self, file: Path | str) -> str:
        """The message with the file and the line."""
        position = file if self.line is None else f"{file}:{self.line}"
        return f"{position}: {'warning: ' if self.is_warning else ''}{self}"


class RelaySection(BaseModel):
    """The relay that the pipeline reads: one that runs elsewhere, or one that it starts itself for its `sources`."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(
        None,
        pattern=ADDRESSES,
        description="Address of a relay that runs elsewhere, or of several of one database, with commas between. "
        "Without it, the pipeline starts its own.",
        examples=["http://relay.internal:11115"],
    )
    token_file: str | None = Field(
        None, description="File with the relay's token; needed beyond the loopback. It is sent to executors elsewhere."
    )
    ca_file: str | None = Field(
        None,
        description="For a relay at `https://`: file with the certificate of the authority that signed the relay's, "
        "sent to executors elsewhere. Without it, the authorities that this machine trusts are accepted.",
    )
    certificate_file: str | None = Field(
        None, description="File with a client certificate, for a relay that asks for one; sent to executors elsewhere."
    )
    key_file: str | None = Field(None, description="File with that certificate's key, if it has a file of its own.")
    folder: str = Field(".databus/relay", description="Where its own relay keeps its logs.")
    listen: str = Field(
        "127.0.0.1:0",
        description="Where its own relay listens; port 0 takes a free one. Executors on other machines must reach it.",
    )
    tls: dict[str, Any] = Field(
        default_factory=dict,
        description="The certificate of its own relay, which then answers by `https://`; see the relay's `tls`.",
    )
    log: dict[str, Any] = Field(default_factory=dict, description="The logs of its own relay; see the relay's `log`.")
    capture: dict[str, Any] = Field(default_factory=dict, description="How its own relay reads; see `capture` there.")
    serve: dict[str, Any] = Field(default_factory=dict, description="How its own relay serves; see `serve` there.")


class SparkSection(BaseModel):
    """The Spark session that the pipeline runs in."""

    model_config = ConfigDict(extra="forbid")

    master: str = Field("local[*]", description="Spark's master; `--master` wins.", examples=["spark://host:7077"])
    settings: dict[str, str] = Field(
        default_factory=dict,
        description="More settings of Spark; they win over the tuned ones.",
        examples=[{"spark.executor.memory": "2g"}],
    )
    archive: str | None = Field(
        None,
        description="Zip with the packages that executors on other machines need, made by `databus archive`; without "
        "it they must have them. With it their Python is called by this one's version, such as `python3.11`, unless "
        "`spark.pyspark.python` in `settings` says otherwise.",
        examples=["executors.zip"],
    )


_SCHEME = "|".join(sorted(set(SCHEMES.values())))


def _as_text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else value


StoreOptions = dict[str, Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | bool | int)]]


class RunSection(BaseModel):
    """How queries are run and restarted."""

    model_config = ConfigDict(extra="forbid")

    trigger_ms: int = Field(0, ge=0, le=3_600_000, description="Least time between the starts of two micro-batches.")
    retry_ms_min: int = Field(
        200, ge=1, le=600_000, description="First wait before a query is restarted after an error."
    )
    retry_ms_max: int = Field(30_000, ge=1, le=3_600_000, description="Longest such wait; each is twice the last.")
    retries_max: int = Field(
        5, ge=0, le=1_000_000, description="Restarts after an unknown error without a batch done between them."
    )
    start_ms_max: int = Field(60_000, ge=1_000, le=3_600_000, description="How long its own relay may take to answer.")
    write_ms_max: int = Field(
        600_000,
        ge=1_000,
        le=86_400_000,
        description="How long an output may take for one batch. After that it is shown as hanging; with `--once` it is "
        "given up.",
    )
    stop_batch_ms_max: int = Field(
        60_000,
        ge=1_000,
        le=86_400_000,
        description="How long a batch that is being written when a reload changes its output may take to end. After "
        "that it is cut off, and repeated.",
    )
    reload: Literal["asked", "on_change"] = Field(
        "asked",
        description="When a running pipeline reads its file again: when it is asked to, by `databus reload` or SIGHUP, "
        "or also when the file has changed and has not been written for a second.",
    )
    http: str | None = Field(
        None,
        description="Where `databus run` answers `/admin/live`, `/admin/ready`, `/metrics`, `/status` and `/events`, "
        "and takes commands; `--http` wins. Without it, nowhere. Beyond the loopback, requests need the token of "
        "`relay.token_file`.",
        examples=["127.0.0.1:11116"],
    )


M = TypeVar("M", bound=BaseModel)


def _defaults(model: type[M]) -> Callable[[], M]:
    return lambda: model.model_validate({})


class LineageSection(BaseModel):
    """Where OpenLineage events go, which say of what tables and columns outputs are made."""

    model_config = ConfigDict(extra="forbid")

    to: str | None = Field(
        None,
        min_length=1,
        description="A file, to which each event is appended as a line of JSON, or the address that takes them. "
        "Without it, none are made. While the address does not answer, a thousand events wait and the oldest are "
        "dropped; rows never wait.",
        examples=["http://127.0.0.1:5000/api/v1/lineage", "lineage.jsonl"],
    )
    token: SecretStr | None = Field(None, description="Sent to the address as a bearer token.")
    namespace: str = Field("databus", min_length=1, description="The namespace of the jobs: one for each output.")


class PipelineSections(BaseModel):
    """The top of a pipeline's file. Nodes are checked by the models of their types."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$",
        description="The pipeline's name; exactly-once targets know it by this. Default: the file's name.",
    )
    project: str | None = Field(
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$",
        description="The project that it belongs to, for access rights in a [dashboard](dashboard.md).",
        examples=["billing"],
    )
    state: str | None = Field(
        None,
        description="Folder of its checkpoints, locks and logs, on the machine that runs the pipeline; executors do "
        "not need it. Default: `.databus/pipelines/<name>`.",
    )
    relay: RelaySection = Field(default_factory=_defaults(RelaySection), description="The relay that it reads.")
    spark: SparkSection = Field(default_factory=_defaults(SparkSection), description="The Spark session.")
    run: RunSection = Field(default_factory=_defaults(RunSection), description="How queries are run.")
    storage: dict[Annotated[str, StringConstraints(pattern=rf"^({_SCHEME})(://[^/\s]+)?$")], StoreOptions] = Field(
        default_factory=dict,
        description="Options of object stores, by `s3`, `gs` or `abfss`, or by bucket (`s3://lake`), which wins. Names "
        "are those of Rust's object_store, such as `region`, `endpoint`, `access_key_id` and `secret_access_key`; "
        "missing ones come from the environment (`AWS_REGION` ...). Give secrets by `${NAME}` or `${file:PATH}`.",
        examples=[{"s3": {"region": "eu-central-1", "secret_access_key": "${SECRET}"}}],
    )
    lineage: LineageSection = Field(default_factory=_defaults(LineageSection), description="OpenLineage events.")
    sources: dict[str, Any] = Field(default_factory=dict, description="Physical sources that its own relay captures.")
    inputs: dict[str, Any] = Field(default_factory=dict, description="Where rows come from, by name.")
    filters: dict[str, Any] = Field(default_factory=dict, description="What is done to them, by name.")
    outputs: dict[str, Any] = Field(default_factory=dict, description="Where they go, by name.")
    tests: dict[str, FilterTest] = Field(
        default_factory=dict, max_length=TESTS_MAX, description="Tests of filters, by name; `databus test` runs them."
    )


@dataclass(frozen=True)
class NodeSpec:
    """A node whose options have been checked: its class, and its options as the class's model."""

    kind: NodeKind
    name: str
    type: str
    plugin: Any
    config: Any

    @property
    def path(self) -> str:
        """Its place in the file."""
        return f"{self.kind}.{self.name}"

    @property
    def sources(self) -> list[str]:
        """The names in its `from`."""
        return [] if self.kind is NodeKind.INPUT else list(self.config.from_)


@dataclass(frozen=True)
class PipelineConfig:
    """A pipeline's file, read and typed."""

    path: Path
    folder: Path
    """The folder of the file, where relative paths start."""
    name: str
    state: Path
    sections: PipelineSections
    sources: Mapping[str, SourceConfig]
    nodes: Mapping[str, NodeSpec]
    written: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The file as it was read, with references instead of their values."""

    @property
    def outputs(self) -> Mapping[str, NodeSpec]:
        """The outputs, by name."""
        return {node.name: node for node in self.nodes.values() if node.kind is NodeKind.OUTPUT}

    def output_of(self, name: str) -> Output:
        """Make the output of this name, without opening its target. Raises `InputError` if there is none."""
        node = self.outputs.get(name)
        if node is None:
            raise InputError(f"{self.name}: has no output {name!r}; {hint_for(name, self.outputs)}")
        output: Output = node.plugin(node.config, self.context_of(name))
        return output

    def context_of(self, output: str) -> OutputContext:
        """The names, folder and stores that an output of this name works with."""
        return OutputContext(self.name, output, self.folder, Storage(self.sections.storage))

    @property
    def relay(self) -> RelaySection:
        """The relay's section."""
        return self.sections.relay

    @property
    def embeds_relay(self) -> bool:
        """Whether the pipeline starts a relay of its own."""
        return self.relay.url is None and bool(self.sources)

    @property
    def relay_folder(self) -> Path:
        """Where its own relay keeps its logs."""
        return self.folder / self.relay.folder

    def relay_url(self) -> str | None:
        """The address of its relay; None for one of its own that never ran."""
        from databus.relay import told_url

        return self.relay.url or told_url(self.relay_folder)

    def relay_client_if_there(self, read_ms_max: int = 60_000) -> "RelayClient | None":
        """A client of its relay; None for one of its own that never ran. read_ms_max: how long it waits for answers."""
        from databus.link import RelayClient

        url = self.relay_url()
        return None if url is None else RelayClient(url, access=self.access, read_ms_max=read_ms_max)

    def relay_client(self) -> "RelayClient":
        """The same for what only the log can tell. Raises `ServiceUnavailable` for a relay that never ran."""
        client = self.relay_client_if_there()
        if client is None:
            raise ServiceUnavailable(
                f"{self.path}: its relay does not run, and only the relay can read the log; `databus run` starts it"
            )
        return client

    def physicals_at(self, relay: str) -> list[str]:
        """The physical sources of which a relay has tables."""
        from databus.link import RelayClient

        return sorted({source.physical for source in RelayClient(relay, access=self.access).sources()})

    def captured_tables(self) -> "dict[str, TableSchema]":
        """The present definitions of captured tables, by full name: what a relay elsewhere says, or, of one of its own,
        what is in its logs, whether it runs or not. Raises `ServiceUnavailable` if the relay does not answer.
        """
        from databus.link import RelayClient
        from databus.log import SchemaStore

        if self.relay.url is not None:
            return RelayClient(self.relay.url, access=self.access).tables()
        return {
            f"{physical}/{version.table.source}": version.table
            for physical in self.sources
            for version in SchemaStore.load(self.relay_folder / physical, physical, {}).current().values()
        }

    @property
    def token_file(self) -> Path | None:
        """The file with the relay's token."""
        return self.access.token_file

    @property
    def access(self) -> "Access":
        """The token and certificates for its relay."""
        from databus.link import Access

        relay = self.relay
        files = (relay.token_file, relay.ca_file, relay.certificate_file, relay.key_file)
        return Access.of(*(None if file is None else self.folder / file for file in files))


@dataclass
class _FileReader:
    """Reads sections one after the other, and collects all problems."""

    path: Path
    problems: list[Problem] = field(default_factory=list)

    def add(self, where: str, message: str) -> None:
        self.problems.append(Problem(where, message))

    def add_lines(self, text: str) -> None:
        for line in text.splitlines():
            where, _, message = line.partition(": ")
            self.add(where, message)

    def substituted(self, value: Any, where: str = "") -> Any:
        """Like `databus.formats.substitute`, but continues after an error, which leaves the value as it is."""
        if isinstance(value, dict):
            return {key: self.substituted(item, path_of(where, (key,))) for key, item in value.items()}
        if isinstance(value, list):
            return [self.substituted(item, path_of(where, (i,))) for i, item in enumerate(value)]
        try:
            return substitute(value, where, folder=self.path.parent)
        except ConfigError as error:
            self.problems.append(Problem(where, str(error).partition(": ")[2], is_unset=True))
            return value

    def sections(self, value: dict[str, Any]) -> PipelineSections:
        """The top sections; wrong ones are noted, and ignored."""
        known = set(PipelineSections.model_fields)
        for name in sorted(set(value) - known):
            self.add(name, f"there is no such section; {hint_for(name, PipelineSections.model_fields)}")
        kept = {name: section for name, section in value.items() if name in known and section is not None}
        try:
            return PipelineSections.model_validate(kept)
        except ValidationError as error:
            self.add_lines("\n".join(lines_of(error, PipelineSections)))
            wrong = {str(detail["loc"][0]) for detail in error.errors()}
            return PipelineSections.model_validate({name: part for name, part in kept.items() if name not in wrong})

    def sources(self, section: Mapping[str, Any]) -> Iterator[tuple[str, SourceConfig]]:
        for name, options in section.items():
            if not _NAME.fullmatch(name):
                self.add(f"sources.{name}", "a name begins with a letter and has letters, digits, _ and - only")
                continue
            if not isinstance(options, dict):
                self.add(f"sources.{name}", "expected options, such as `type: sqlite`")
                continue
            try:
                yield name, parse_source(options, f"sources.{name}")
            except ConfigError as error:
                self.add_lines(str(error))

    def nodes(self, sections: PipelineSections) -> Iterator[NodeSpec]:
        seen: dict[str, NodeKind] = {}
        for kind in NodeKind:
            for name, options in getattr(sections, kind).items():
                where = f"{kind}.{name}"
                if len(seen) >= NODES_MAX:
                    self.add(where, f"more than {NODES_MAX} nodes")
                    return
                if not _NAME.fullmatch(name):
                    self.add(where, "a name begins with a letter and has letters, digits, _ and - only")
                elif name in seen and kind is not NodeKind.OUTPUT:
                    self.add(where, f"{seen[name]}.{name} has the same name; a `from` could not tell them apart")
                node = self.node(kind, name, options)
                if kind is not NodeKind.OUTPUT:
                    seen.setdefault(name, kind)
                if node is not None:
                    yield node

    def node(self, kind: NodeKind, name: str, options: Any) -> NodeSpec | None:
        where = f"{kind}.{name}"
        if not isinstance(options, dict):
            self.add(where, f"expected options, with at least `type: {plugin_types(kind)[0]}`")
            return None
        type_name = options.get("type")
        if not isinstance(type_name, str):
            self.add(f"{where}.type", f"missing; there are {', '.join(plugin_types(kind))}")
            return None
        try:
            plugin = plugin_class(kind, type_name, self.path.resolve().parent)
        except ConfigError as error:
            self.add(f"{where}.type", str(error))
            return None
        try:
            config = plugin.config_model.model_validate(options)
        except ValidationError as error:
            self.add_lines("\n".join(lines_of(error, plugin.config_model, where)))
            return None
        return NodeSpec(kind, name, type_name, plugin, config)


def _unread(path: Path, error_text: str) -> Problem:
    """Why a file cannot be read. error_text: `FILE: ...` or `FILE:LINE:COLUMN: ...`."""
    match = re.fullmatch(r":(\d+):(\d+): (.*)", error_text.removeprefix(str(path)), re.DOTALL)
    if match is None:
        return Problem("", error_text.removeprefix(f"{path}: "))
    return Problem("", f"column {match[2]}: {match[3]}", line=int(match[1]))


def read_pipeline(path: Path) -> tuple[PipelineConfig | None, list[Problem]]:
    """Read a pipeline's file: what could be read of it, None if nothing, and all problems."""
    reader = _FileReader(path)
    try:
        value = load_yaml(path)
    except ConfigError as error:
        return None, [_unread(path, str(error))]
    if "listen" in value and not value.keys() & {"inputs", "outputs"}:
        reason = "this is a relay's file: `databus check-source` examines it, and `databus relay` runs it"
        return None, [Problem("", reason)]
    sections = reader.sections(reader.substituted(value))
    name = _name_of(path, sections.name)
    folder = path.resolve().parent
    config = PipelineConfig(
        path=path,
        folder=folder,
        name=name,
        state=state_folder(folder, name, sections.state),
        sections=sections,
        sources=dict(reader.sources(sections.sources)),
        nodes={node.path: node for node in reader.nodes(sections)},
        written=value,
    )
    return config, reader.problems


def state_of(path: Path) -> Path:
    """The state folder of a pipeline's file, also if the file has mistakes, so that one that runs can be asked. Raises
    `ConfigError` if there is no such file.
    """
    config, problems = read_pipeline(path)
    if config is not None:
        return config.state
    if not path.is_file():
        raise ConfigError("\n".join(problem.in_file(path) for problem in problems))
    sections = _top_level(path)
    name = _name_of(path, sections.get("name"))
    return state_folder(path.resolve().parent, name, sections.get("state"))


def name_of(path: Path) -> str:
    """The name of a pipeline, by its file, also if the file has mistakes."""
    return _name_of(path, _top_level(path).get("name"))


def relay_at(path: Path) -> "tuple[str | None, Access]":
    """The address of a pipeline's relay, and the access to it, also if the file has mistakes."""
    config, problems = read_pipeline(path)
    if config is None:
        raise ConfigError("\n".join(problem.in_file(path) for problem in problems))
    return config.relay_url(), config.access


def pipelines_in(folder: Path) -> set[str]:
    """The names of the pipelines whose files are in a folder, also if the files have mistakes."""
    files = [path for path in folder.iterdir() if path.suffix in (".yml", ".yaml") and path.is_file()]
    return {_name_of(file, _top_level(file).get("name")) for file in files}


def _top_level(path: Path) -> dict[str, str]:
    return dict(_TOP_LEVEL.findall(path.read_text(encoding="utf-8", errors="replace")))


def _name_of(path: Path, chosen: str | None) -> str:
    return chosen or re.sub(r"[^A-Za-z0-9_-]", "-", path.stem)


def state_folder(folder: Path, name: str, state_given: str | None = None) -> Path:
    """The state folder of the pipeline of this name. folder: its file's. state_given: the file's `state`."""
    return folder / (state_given or f".databus/pipelines/{name}").removeprefix("file://")
