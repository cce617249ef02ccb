"""docs/metrics.md: every metric, from the code that exports it. Names are a contract."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from databus.bootstrap._metrics import _BY_PHYSICAL, metrics_text
from databus.dashboard._samples import SAMPLED
from databus.pipeline.running._health import render_pipeline_metrics
from databus.relay import _metrics as of_relay

Row = tuple[str, str, str, str]
"""Name, kind, labels, help."""

HEAD = """\
# Metrics

Generated from the code by `make docs`; do not edit.

Names, labels and units are a contract: whoever has a dashboard of their own reads them. Relays, pipelines and
bootstrap services have them at `/metrics`, in Prometheus' format. Those with a star are what a
[dashboard](dashboard.md) looks at for alerts, and pushes, with a label `relay` or `pipeline` that says whose it is.
Counters begin with 0 when the process starts.
"""


def metrics_markdown() -> str:
    """The whole page."""
    lines = [HEAD]
    for title, rows in (
        ("A relay", _of_the_relay()),
        ("A pipeline", _of_text(render_pipeline_metrics(_PIPELINE))),
        ("A bootstrap service", _of_text(metrics_text(0, {"whole": 1}, 0, {"shop": dict.fromkeys(_BY_PHYSICAL, 0)}))),
    ):
        lines += [f"## {title}", "", "| metric | kind | labels | |", "|---|---|---|---|"]
        lines += [f"| {_named(row)} | {row[1]} | {row[2]} | {row[3]} |" for row in sorted(rows)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


_OUTPUT = {
    "state": "running", "rows": 1, "batches": 1, "retries": 0, "dead_letters": 0, "last_batch_us": 1,
    "flow": {"rows": 1, "bytes": 1, "dropped": {"filters.a": 1}, "ms": {"write": 1}},
    "visible": {"buckets": {"+Inf": 1}, "sum_s": 1.0, "count": 1},
    "backlog": [{"physical": "shop", "is_least": False, "rows": 1, "lag_s": 1.0, "held": True}],
}  # fmt: skip
_PIPELINE = {
    "relay_error": "", "disk_free": 0.5, "sources": {"shop": {"is_well": True}}, "outputs": {"copy": _OUTPUT},
}  # fmt: skip
"""A status with something of everything, so that each family has a sample, which has its labels."""


def _named(row: Row) -> str:
    is_seen = row[0] in SAMPLED or f"{row[0]}_count" in SAMPLED
    return f"`{row[0]}`{' *' if is_seen else ''}"


def _of_the_relay() -> Iterator[Row]:
    """Each call that makes a sample, by what it says of its family: most have one only in certain states."""
    for call in ast.walk(ast.parse(Path(of_relay.__file__).read_text())):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) == 5):
            continue
        if isinstance(call.func.value, ast.Name) and call.func.value.id == "families":
            name, text, labels = (_value(each) for each in call.args[:3])
            total = "_total" if call.func.attr == "counter" else ""
            yield f"databus_{name}{total}", call.func.attr, ", ".join(labels), text


def _value(node: ast.expr) -> Any:
    return getattr(of_relay, node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def _of_text(text: bytes) -> Iterator[Row]:
    for family in text_string_to_metric_families(text.decode()):
        labels = sorted({name for sample in family.samples for name in sample.labels if name != "le"})
        total = "_total" if family.type == "counter" else ""
        if not family.name.endswith("_created"):
            yield f"{family.name}{total}", family.type, ", ".join(labels), family.documentation
