"""The table of the relay's commands: everything that it answers over HTTP, a row each.

To add a command, write a row here and a method in `ANSWERS` of `databus.relay._commands`; for a parameter a line in the
rows that take it, whose value `Ask.given` then has under its name. Then `python scripts/write_reference.py`.
"""

from collections.abc import Sequence
from typing import Final

from databus.formats import BigIntegers
from databus.relay._avro_registry_http import REGISTRY_MEDIA
from databus.relay._command import (
    CHECKPOINT,
    FINGERPRINT,
    FLAG,
    NAMES,
    ORIGINAL,
    PAIR,
    TIME,
    Answer,
    Command,
    JsonBody,
    OnlyOne,
    Parameter,
    Table,
    Type,
    choice,
    whole,
)
from databus.relay._config import GroupsConfig, ServeConfig
from databus.relay._grant import Right
from databus.relay._params import START_NAMES, StartName, StreamForm, after
from databus.relay.groups import CallBody, Exported, ReportBody

FRAMES: Final = "application/vnd.databus.frames"
NDJSON: Final = "application/x-ndjson"
WAIT_MS_DEFAULT: Final = 10_000
PARTITIONS_MAX: Final = 1024

PHYSICAL: Final = Parameter("physical", "the physical source; may be left out where it is clear")
SOURCES: Final = Parameter(
    "sources", "names (`shop/main.orders`, `main.orders`, `orders`), patterns (`main.*`) or ids; all by default", NAMES
)
COLUMN_FILTERS: Final = (
    Parameter("where", "only rows for which this [condition](filters.md) holds, of all tables"),
    Parameter("columns", "only these columns, and the key; of all tables"),
    Parameter("filters", 'where tables differ: `{"main.orders": {"where": "…", "columns": ["…"]}}`'),
)
FILTERS: Final = (
    *COLUMN_FILTERS,
    Parameter("partition", "`i/n`: only rows whose key is in bucket i of n, counted from 0"),
)
START: Final = (
    Parameter("from", "start after this checkpoint, of one physical source or whole", CHECKPOINT),
    Parameter("scn", "start after this SCN", Type("N", after, whole().schema)),
    Parameter("time", "start with the first transaction at or after this time (or microseconds since 1970)", TIME),
    Parameter(
        "start",
        "start there; `beginning` if nothing says where; `latest` for `/position`, and for JSON with `follow=1`",
        choice(StartName),
    ),
    Parameter("checkPoint", "start at a checkpoint of the original's client library", ORIGINAL),
)
ONE_START: Final = OnlyOne(START_NAMES, "only one of them can say where to start")
TO: Final = Parameter("to", "end after the group that reaches this place", PAIR)
REASON: Final = Parameter("reason", "why; it stands in the audit log")
IF_SEEN: Final = Parameter(
    "if_seen", "the status in which the sources were seen, such as `running`: 412 if one has another now"
)
PHYSICALS: Final = Parameter("sources", "physical sources; all by default", NAMES)
POSITION_ERRORS: Final = (404, 409, 410, 503)


def table(serve: ServeConfig | None = None, groups: GroupsConfig | None = None) -> Table:
    """The commands of a relay with these limits; of one with the default ones."""
    serve, groups = serve or ServeConfig(), groups or GroupsConfig()
    return Table(
        [
            *_tables(),
            _stream(serve),
            *_positions(serve),
            *_states(),
            *_controls(),
            *_groups(groups),
            *_registry(),
            *_about(),
        ]
    )


def command_named(path: str, serve: ServeConfig | None = None) -> Command:
    """The command of a path, for a server that answers some of a relay's."""
    return next(command for command in table(serve) if command.path == path)


def _wait(serve: ServeConfig, default: int, what: str) -> Parameter:
    return Parameter(
        "wait_ms",
        f"{what}, in milliseconds; up to `serve.wait_ms_max`, {default} by default",
        whole(0, serve.wait_ms_max),
        min(default, serve.wait_ms_max),
    )


def _tables() -> Sequence[Command]:
    """Which tables there are."""
    return (
        Command(
            "/sources",
            Answer.array('`[{"name": "shop/main.orders", "id": 1}]`'),
            parameters=(
                Parameter("v", "2 adds table, key, schema version and fingerprint", whole(1, 2, written="1|2"), 1),
            ),
        ),
        Command(
            "/register",
            Answer.array("every version of the tables' schemas: Avro, and TableSchema"),
            parameters=(
                PHYSICAL,
                SOURCES,
                Parameter("fingerprint", "the one definition that has it", FINGERPRINT),
                *COLUMN_FILTERS,
                Parameter("protocolVersion", "of the original; not looked at"),
            ),
            errors=(404,),
        ),
    )


def _stream(serve: ServeConfig) -> Command:
    """What happened to them."""
    return Command(
        "/stream",
        Answer(
            "changes of one physical source, in commit order: frames, or JSON lines",
            {FRAMES: None, NDJSON: None},
        ),
        parameters=(
            PHYSICAL,
            SOURCES,
            *FILTERS,
            *START,
            TO,
            Parameter("follow", "1 stays on and sends what comes", FLAG, default=False),
            _wait(serve, WAIT_MS_DEFAULT, "without `follow`: how long to wait for the first group"),
            Parameter("max_bytes", "whole groups up to so many bytes, one at least", whole(1)),
            Parameter("size", "the same, as the original called it", whole(1)),
            Parameter(
                "output", "or by the header Accept; JSON by default", choice(StreamForm, "is neither frames nor json")
            ),
            Parameter(
                "big_integers",
                "how JSON writes integers beyond 2^53; `number` by default",
                choice(BigIntegers, f"is neither {' nor '.join(BigIntegers)}"),
                BigIntegers.NUMBER,
            ),
        ),
        only_one=(
            ONE_START,
            OnlyOne(frozenset({"max_bytes", "size"}), "they mean the same; give one"),
        ),
        errors=(*POSITION_ERRORS, 429),
    )


def _positions(serve: ServeConfig) -> Sequence[Command]:
    """Where a reader is to begin and end."""
    return (
        Command(
            "/position",
            Answer.object("where a start parameter stands, and what the log holds"),
            parameters=(PHYSICAL, SOURCES, *START),
            only_one=(ONE_START,),
            errors=POSITION_ERRORS,
        ),
        Command(
            "/range",
            Answer.object("how far so many rows or bytes reach, and where to split them for several readers"),
            parameters=(
                PHYSICAL,
                SOURCES,
                *FILTERS,
                *START,
                TO,
                Parameter("rows_max", "whole groups with so many rows at most, one group at least", whole(1)),
                Parameter("bytes_max", "whole groups up to so many bytes, one group at least", whole(1)),
                Parameter("partitions", "for how many readers to split it", whole(1, PARTITIONS_MAX), 1),
                _wait(serve, 0, "how long to wait for rows or controls"),
                Parameter(
                    "stop_at_controls", "1 ends before a change of a table's schema and the like", FLAG, default=False
                ),
            ),
            only_one=(ONE_START,),
            errors=POSITION_ERRORS,
        ),
        Command(
            "/chain",
            Answer.object(
                "what a [chained relay](sources.md#another-relay) has to know of a log: its uuid, the definitions, "
                "where a copy begins, the relays between here and the database"
            ),
            parameters=(
                PHYSICAL,
                Parameter("start", "where a copy begins; `earliest` by default", choice(StartName), StartName.EARLIEST),
                Parameter("definitions", "how many definitions the copy has; all that are more are sent", whole()),
            ),
            needs_all_tables=True,  # a copy is of the whole log
            errors=(404, 410, 503),
        ),
    )


def _states() -> Sequence[Command]:
    """What there is to see."""
    return (
        Command(
            "/bufferInfo/inbound/{physical}",
            Answer.object("what the log of a physical source holds"),
            errors=(404, 503),
        ),
        Command("/physicalSources", Answer.array("the physical sources: type, identity, and the tables of each")),
        Command(
            "/physicalBuffers",
            Answer.object("by log, the physical sources in it; here each has a log of its own"),
            parameters=(Parameter("pretty", "of the original; not looked at"),),
        ),
        Command("/relayStats/outbound/http/clients", Answer.array("who has asked")),
        Command(
            "/relayStats/outbound/http/client/{name}", Answer.object("what one asked for and was sent"), errors=(404,)
        ),
        Command("/relayStats/outbound/http/total", Answer.object("what all asked for and were sent")),
        Command("/containerStats/inbound/events/total", Answer.object("what was captured since the start")),
        Command("/containerStats/inbound/events/psources", Answer.array("the names of the physical sources")),
        Command(
            "/containerStats/inbound/events/psource/{physical}",
            Answer.object("what was captured of one since the start"),
            errors=(404,),
        ),
        Command("/containerStats/outbound/total", Answer.object("what was sent, and how many streams are open")),
        Command("/containerStats/outbound/clients", Answer.array("who has asked")),
        Command("/metrics", Answer("for Prometheus", {"text/plain": None}), errors=(503,)),
    )


def _controls() -> Sequence[Command]:
    """What operators do."""
    states = Answer.array(
        "the states after it; a source that takes longer than 2 s to get there shows what it is doing"
    )
    post, why, errors = ("POST",), (REASON, IF_SEEN), (404, 409, 412, 503)
    return (
        Command(
            "/controlSources/status",
            Answer.array("the states of the physical sources"),
            parameters=(PHYSICALS, Parameter("look", "1 has the lag measured first", FLAG, default=False)),
            errors=(404,),
        ),
        Command("/controlSources/pause", states, Right.CONTROL, post, (PHYSICALS, *why), errors=errors),
        Command("/controlSources/unpause", states, Right.CONTROL, post, (PHYSICALS, *why), errors=errors),
        Command(
            "/controlSources/snapshot",
            Answer.array("the states after it; the tables are read again"),
            Right.CONTROL,
            post,
            (
                PHYSICALS,
                Parameter("tables", "the tables to read, such as `main.orders`", NAMES, is_required=True),
                Parameter("where", "read only rows for which this condition holds (mysql; 400 elsewhere)"),
                *why,
            ),
            errors=errors,
        ),
        Command(
            "/controlSources/cancelSnapshot",
            Answer.array("the states after it; these tables are read no further, and copies keep what they have"),
            Right.CONTROL,
            post,
            (PHYSICALS, Parameter("tables", "the tables to read no further", NAMES, is_required=True), *why),
            errors=errors,
        ),
        Command(
            "/reload",
            Answer.object(
                "reads the relay's file again: the physical sources `unchanged`, `changed`, `added`, `removed`, and "
                "what of the file was not taken (`kept`). A file with a mistake is 400 and changes nothing"
            ),
            Right.CONTROL,
            post,
            (REASON,),
            errors=(503,),
            needs_all_tables=True,
        ),
    )


def _groups(groups: GroupsConfig) -> Sequence[Command]:
    """Durable consumers and groups."""
    post, errors = ("POST",), (404, 409, 421, 503)
    after = Answer.object("the group after it")

    def act(verb: str, *parameters: Parameter, body: JsonBody | None = None, more: tuple[int, ...] = ()) -> Command:
        path, errors_of = f"/groups/{{name}}/{verb}", (*errors, *more)
        return Command(path, after, Right.CONTROL, post, parameters, errors=errors_of, body=body)

    return (
        Command(
            "/groups",
            Answer.object("who coordinates groups; the groups, and how far each is behind"),
            parameters=(Parameter("names", "0 leaves the groups out", FLAG, default=True),),
            errors=(503,),
        ),
        Command(
            "/groups/{name}", Answer.object("one group: members, partitions, lags"), methods=("GET",), errors=errors
        ),
        Command(
            "/groups/{name}",
            Answer.object("what a member is to take and to give up; see [Groups](#groups)"),
            methods=post,
            errors=(*errors, 410),
            body=JsonBody(CallBody, groups.call_bytes_max),
        ),
        Command(
            "/groups/{name}/report",
            Answer.object("`{}`: it is shown from now on; see [Groups](#groups)"),
            methods=post,
            errors=errors,
            body=JsonBody(ReportBody, groups.call_bytes_max),
        ),
        act(
            "reset",
            Parameter("to", "`latest`, `earliest`, `beginning`, a time, or an SCN"),
            Parameter("from", "or a checkpoint", CHECKPOINT),
            more=(410,),
        ),
        act(
            "resize",
            Parameter(
                "to", "so many partitions: a multiple of today's number", whole(1, PARTITIONS_MAX), is_required=True
            ),
        ),
        act("pause"),
        act("resume"),
        act("delete", Parameter("force", "1 deletes a group that has members, too", FLAG, default=False)),
        Command("/groups/{name}/export", Answer.object("the group, to be imported"), errors=errors),
        act("import", body=JsonBody(Exported, groups.call_bytes_max)),
    )


def _registry() -> Sequence[Command]:
    """The registry of Avro schemas: paths, parameters and errors are Confluent's."""
    get, post = ("GET",), ("POST",)

    def row(
        path: str, says: str, methods: tuple[str, ...] = get, *, is_array: bool = False, right: Right = Right.READ
    ) -> Command:
        schema = {} if path.endswith("/schema") else {"type": "array" if is_array else "object"}
        return Command(
            f"/registry{path}",
            Answer(says, {REGISTRY_MEDIA: schema}),
            right,
            methods,
            errors=(404, 422) if methods == get else (404, 409, 422),
            needs_all_tables=True,
            checks_itself=True,
        )

    version = "/subjects/{subject}/versions/{version}"
    return (
        row("", "nothing; clients ask whether it is there"),
        row("/subjects", "the subjects", is_array=True),
        row("/subjects/{subject}", "the version of a subject that has the schema in the body", post),
        row("/subjects/{subject}/versions", "the numbers of a subject's versions", is_array=True),
        row("/subjects/{subject}/versions", "registers the schema: its id and number", post, right=Right.CONTROL),
        row(version, "one version, by number or `latest`"),
        row(f"{version}/schema", "its schema alone"),
        row("/schemas/types", "`AVRO`", is_array=True),
        row("/schemas/ids/{id}", "the schema of an id"),
        row("/schemas/ids/{id}/subjects", "the subjects that have it", is_array=True),
        row("/schemas/ids/{id}/versions", "the versions that have it", is_array=True),
        row(f"/compatibility{version}", "whether the schema in the body could follow", post),
        row("/config", "the level of compatibility of all subjects"),
        row("/config/{subject}", "the same"),
        row("/mode", "`READWRITE`"),
        row("/mode/{subject}", "the same"),
        row("/{*rest}", "that there is no such call", ("GET", "POST")),
    )


def _about() -> Sequence[Command]:
    """The relay itself."""
    return (
        Command("/config", Answer.object("the configuration, without secrets"), needs_all_tables=True),
        Command("/admin", Answer.plain("`GOOD`, as long as it can be said"), Right.NONE),
        Command("/admin/live", Answer.plain("the same"), Right.NONE),
        Command(
            "/admin/ready",
            Answer("`GOOD`; `BAD` and 503 while no log can be served", {"text/plain": None}, (200, 503)),
            Right.NONE,
            parameters=(
                Parameter("sources", "these physical sources must be captured, or paused by an operator", NAMES),
            ),
            errors=(404,),
        ),
        Command("/admin/status", Answer.object("the relay's state, and why")),
        Command("/help", Answer.plain("all commands and parameters"), Right.NONE),
        Command("/openapi.json", Answer.object("the same for programs, as OpenAPI 3.1"), Right.NONE),
    )
