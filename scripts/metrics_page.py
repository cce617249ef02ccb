"""docs/metrics.md: every metric, from the code that exports it. Names are a contract."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

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
    """Each call that adds samples, by the labels that it gives them: most families have one only in certain states."""
    labels: dict[str, str] = {}
    for function in ast.walk(ast.parse(Path(of_relay.__file__).read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        named = {
            node.targets[0].id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "families.add":
                given = ", ".join(_labels(call.args[0], named))
                labels |= {str(ast.literal_eval(sample.elts[0])): given for sample in call.args[1:]}
    for kind, texts in (("gauge", of_relay.GAUGES), ("counter", of_relay.COUNTERS)):
        for name, text in texts.items():
            yield f"databus_{name}{'_total' if kind == 'counter' else ''}", kind, labels[name], text


def _labels(node: ast.expr, named: Mapping[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.Name):
        node = named[node.id]
    for key, value in zip(node.keys, node.values, strict=True):
        yield from _labels(value, named) if key is None else [ast.literal_eval(key)]


def _of_text(text: bytes) -> Iterator[Row]:
    for family in text_string_to_metric_families(text.decode()):
        labels = sorted({name for sample in family.samples for name in sample.labels if name != "le"})
        total = "_total" if family.type == "counter" else ""
        if not family.name.endswith("_created"):
            yield f"{family.name}{total}", family.type, ", ".join(labels), family.documentation
