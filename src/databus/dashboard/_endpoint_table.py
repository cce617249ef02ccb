"""The table of the dashboard's API: one row for each endpoint.

To add one, write a row here and a method in `ANSWERS` of `_answers.py`; then `python scripts/write_reference.py`.
"""

from typing import Final

from databus.dashboard._alerts import SILENCE_S_MAX
from databus.dashboard._endpoint import ApiEndpoint, text
from databus.dashboard._rights import DashboardRight
from databus.relay import Parameter, whole

_NAME_MAX: Final = 200
_US_MAX: Final = 1 << 53
_TARGET: Final = (404, 503)
_TRACE: Final = (404, 409, 410, 500, 503)
_ACT: Final = (404, 409, 412, 422, 503)

PIPELINE: Final = Parameter("pipeline", "only of this pipeline", text(_NAME_MAX, "NAME"))
OUTPUT: Final = Parameter("output", "only of this output", text(_NAME_MAX, "NAME"))
OF_PIPELINE: Final = Parameter("pipeline", "the pipeline", text(_NAME_MAX, "NAME"), is_required=True)
LIMIT: Final = Parameter("limit", "how many at most, the newest first", whole(1, 1_000), 100)
BEFORE: Final = Parameter("before_us", "only older than this time, in microseconds since 1970", whole(0, _US_MAX))
REASON: Final = Parameter("reason", "why; the audit logs have it", text(1_000), is_required=True)
IF_SEEN: Final = Parameter("if_seen", "the state that you saw: 412 if it is another one by now", text(40, "STATE"))
CONFIRM: Final = Parameter("confirm", "the name once more", text(_NAME_MAX, "NAME"), is_required=True)
TABLES: Final = Parameter("tables", "`main.orders`, with commas between", text(10_000, "NAME,NAME"), is_required=True)
READ_TABLES: Final = Parameter(
    "tables", "of these tables, `main.orders`, with commas between", text(10_000, "NAME,NAME"), is_required=True
)
ROWS: Final = Parameter("rows", "the most rows in a batch", whole(1, 2**31 - 1))
BYTES: Final = Parameter("bytes", "the most bytes in a batch, as the relay's log counts them", whole(1, 2**31 - 1))
MINUTES: Final = Parameter("minutes", "for how long", whole(1, SILENCE_S_MAX // 60), is_required=True)
SOME_TABLES: Final = Parameter("tables", "only of these tables, with commas between", text(10_000, "NAME,NAME"))
COUNT: Final = Parameter("count", "how many rows you saw: 412 if there are more or fewer by now", whole(1, 2**31 - 1))
IF_FILE: Final = Parameter(
    "if_file", "the `hash` of the file in `GET /config`: 412 if it is another file by now", text(64, "HASH")
)
_WHY: Final = (REASON, IF_SEEN)
_PAGE: Final = (
    Parameter("like", "only those whose names contain this text", text(_NAME_MAX)),
    Parameter("limit", "how many tables at most, in the order of their names", whole(1, 1_000), 100),
    Parameter("offset", "how many tables to skip", whole(0, 1_000_000), 0),
)


def _get(
    path: str,
    says: str,
    *parameters: Parameter,
    right: DashboardRight = DashboardRight.SEE,
    errors: tuple[int, ...] = (),
) -> ApiEndpoint:
    return ApiEndpoint("GET", path, right, says, parameters, errors=errors)


def _act(
    path: str, says: str, *parameters: Parameter, right: DashboardRight = DashboardRight.CONTROL, method: str = "POST"
) -> ApiEndpoint:
    return ApiEndpoint(
        method, path, right, f"{says}; answers with an operation", (*_WHY, *parameters), 202, errors=_ACT
    )


_OUTPUT: Final = "/outputs/{pipeline}/{output}"
_LETTERS: Final = "/letters/{pipeline}/{output}"
_SOURCE: Final = "/sources/{relay}/{source}"
_PIPELINE: Final = "/pipelines/{pipeline}"

ENDPOINTS: Final = (
    ApiEndpoint("GET", "/session", None, "who you are, and what you may do; `principal` is null before sign-in"),
    ApiEndpoint(
        "POST",
        "/session",
        None,
        "signs in by a token, or by the one behind `#once=` in the link that the start prints: the answer sets a "
        "cookie for eight hours",
        (Parameter("token", "yours, or that of the link", text(_NAME_MAX), is_required=True),),
    ),
    ApiEndpoint("DELETE", "/session", None, "signs out"),
    ApiEndpoint("GET", "/openapi.json", None, "this table for programs, as OpenAPI 3.1"),
    _get("/graph", "nodes and edges of all pipelines, and what relays capture"),
    _get("/status", "states, lags and rates of everything, each with the time when it was seen"),
    ApiEndpoint(
        "GET",
        "/events",
        DashboardRight.SEE,
        "the same whenever it is new, as server-sent events",
        (),
        200,
        "text/event-stream",
        (429,),
    ),
    _get(
        "/metrics",
        "what was counted and measured in the last 30 days, as columns of 2,000 points at most",
        Parameter("node", "only of this node, such as `shop/outputs.copy`", text(2 * _NAME_MAX, "NODE")),
        Parameter("since_us", "from this time on, in microseconds since 1970; six hours", whole(0, _US_MAX), 0),
        errors=(404,),
    ),
    _get(
        "/sources/{relay}/{source}",
        "its tables with every version of their schemas, how many there are (`count`), and who reads it",
        *_PAGE,
        errors=_TARGET,
    ),
    _get(
        "/outputs/{pipeline}/{output}/tables",
        "the tables that an output has written since its pipeline started, how many these are (`count`), "
        "and how many `more` there are beyond the 1,000 of which most rows were written",
        *_PAGE,
        errors=(404,),
    ),
    _get(
        "/journal",
        "what pipelines did: rows, changes of tables, errors",
        PIPELINE,
        OUTPUT,
        LIMIT,
        BEFORE,
        errors=_TARGET,
    ),
    _get("/audit", "who did what, when and why, here and at pipelines", PIPELINE, LIMIT, errors=_TARGET),
    _get("/letters", "how many rows targets refuse, by output and table", PIPELINE, OUTPUT, errors=_TARGET),
    _get(
        "/letters/rows",
        "these rows, with the reasons",
        OF_PIPELINE,
        OUTPUT,
        LIMIT,
        right=DashboardRight.ROWS,
        errors=_TARGET,
    ),
    _get(
        "/trace",
        "the changes of one row, and what became of each in every output",
        OF_PIPELINE,
        Parameter("table", "the table, such as `main.orders`", text(_NAME_MAX, "NAME"), is_required=True),
        Parameter("key", "the row's key: `id=17&region=eu`", text(4_000, "NAME=VALUE"), is_required=True),
        Parameter("since_s", "how many seconds back; 0: all that the log has", whole(0, 31_622_400), 3_600),
        LIMIT,
        right=DashboardRight.ROWS,
        errors=_TRACE,
    ),
    _get(
        "/batches",
        "whether the batches of each output follow each other, and have as many rows as the log",
        OF_PIPELINE,
        errors=_TRACE,
    ),
    _get(
        "/lineage",
        "which tables come to which output, by which filters, and of which columns each column there is made",
        PIPELINE,
        errors=_TARGET,
    ),
    _get("/alerts", "alerts that are pending or fire, those that are over, and the rules"),
    _get("/operations", "what was asked for since the dashboard started, and what came of it", LIMIT),
    _get("/operations/{id}", "one of them", errors=(404,)),
    _get(
        "/config",
        "the file of a pipeline as it runs, and what a reload would change, without secrets",
        OF_PIPELINE,
        right=DashboardRight.CONTROL,
        errors=_TARGET,
    ),
    *(
        _act(f"{_OUTPUT}/{verb}", says)
        for verb, says in (
            ("pause", "pauses an output, also over restarts, until it is resumed"),
            ("resume", "resumes an output where its target stands"),
            ("drain", "has an output write what the relay has now, then stop"),
        )
    ),
    _act(
        f"{_OUTPUT}/throttle",
        "has an output write slowly until it is resumed, or its pipeline started again",
        ROWS,
        BYTES,
    ),
    _act(
        "/tables/{pipeline}/{output}/{table}/rebuild",
        "rebuilds a table of an output: the output rests, the table is removed, and is read again",
        CONFIRM,
        right=DashboardRight.ADMIN,
    ),
    _act(f"{_OUTPUT}/stop", "stops an output until the pipeline is started again", CONFIRM),
    ApiEndpoint(
        "POST",
        "/alerts/{id}/ack",
        DashboardRight.CONTROL,
        "acknowledges an alert: notices of it are not repeated while it fires",
        (REASON,),
        errors=(404,),
    ),
    ApiEndpoint(
        "POST",
        "/alerts/{id}/silence",
        DashboardRight.CONTROL,
        "silences an alert: no notices of it are sent for a while",
        (REASON, MINUTES),
        errors=(404,),
    ),
    _act(f"{_LETTERS}/replay", "writes rows that a target refused once more", SOME_TABLES, COUNT),
    _act(f"{_LETTERS}/drop", "drops such rows for good", SOME_TABLES, COUNT, CONFIRM, right=DashboardRight.ADMIN),
    _act(f"{_SOURCE}/pause", "pauses the capture of a source"),
    _act(f"{_SOURCE}/resume", "resumes the capture of a source"),
    _act(f"{_SOURCE}/snapshot", "reads tables of a source again, by a snapshot", TABLES),
    _act(f"{_SOURCE}/snapshot", "cancels the snapshot of tables", READ_TABLES, method="DELETE"),
    _act(f"{_PIPELINE}/reload", "reloads a pipeline's file", IF_FILE),
    _act(f"{_PIPELINE}/drain", "has a pipeline write what its relay has now, then end"),
    _act(f"{_PIPELINE}/stop", "stops a pipeline in order", CONFIRM, right=DashboardRight.ADMIN),
)
