"""The numbers of the board as samples, with the names that relays and pipelines use in their `/metrics`. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from databus.dashboard._board import Board, lag_of
from databus.dashboard._parts import PipelinePart
from databus.dashboard._watch import Watch

UP: Final = "up"
"""Whether a part answers, as Prometheus names it."""
VISIBLE: Final = "databus_output_commit_to_visible_seconds"

_OF_PIPELINE: Final = {"databus_pipeline_relay_answers", "databus_disk_free_ratio"}
_OF_OUTPUT: Final = {
    "databus_output_state", "databus_output_rows_total", "databus_output_batches_total", "databus_output_retries_total",
    "databus_output_rows_read_total", "databus_output_bytes_read_total", "databus_output_rows_dropped_total",
    "databus_output_stage_seconds_total", f"{VISIBLE}_bucket", f"{VISIBLE}_sum", f"{VISIBLE}_count",
    "databus_output_lag_seconds", "databus_output_lag_rows", "databus_output_held", "databus_output_dead_letters",
    "databus_journal_breaks",
}  # fmt: skip
_OF_SOURCE: Final = {
    "databus_capture_state", "databus_pipeline_source_captured", "databus_capture_lag_seconds",
    "databus_capture_rows_total", "databus_capture_bytes_total", "databus_capture_lag_bytes",
    "databus_capture_retention_left_seconds",
}  # fmt: skip
SAMPLED: Final = frozenset({UP, *_OF_PIPELINE, *_OF_OUTPUT, *_OF_SOURCE})
"""The names of all samples."""


@dataclass(frozen=True)
class Sample:
    """One number at one moment."""

    metric: str
    labels: Mapping[str, str]
    value: float
    node: str = ""
    """What it is about, such as `shop/outputs.copy`."""
    project: str | None = None
    """The project of the node."""


def samples_of(board: Board) -> Iterator[Sample]:
    """The samples of all parts."""
    for watch in board.watches.values():
        labels = {watch.part.kind: watch.name}
        unseen = watch.unseen
        up = float(not unseen) if watch.seen.at_us or unseen else None
        state = watch.seen.status.get("state")
        if up is not None:
            yield Sample(UP, labels, 0.0 if state == "stopped" else up, watch.name, watch.project)
        if state in ("stopped", "ended"):
            # Its last numbers are of the past, and would keep alerts open.
            continue
        if isinstance(watch.part, PipelinePart):
            yield from _of_pipeline(watch, labels)
        yield from _of_sources(watch, labels)


def _of_pipeline(watch: Watch, labels: dict[str, str]) -> Iterator[Sample]:
    status, project = watch.seen.status, watch.project
    if status:
        answers = float(not status.get("relay_error"))
        yield Sample("databus_pipeline_relay_answers", labels, answers, watch.name, project)
    if status.get("disk_free") is not None:
        yield Sample("databus_disk_free_ratio", labels, float(status["disk_free"]), watch.name, project)
    for name, output in status.get("outputs", {}).items():
        output_labels, node = {**labels, "output": name}, f"{watch.name}/outputs.{name}"
        yield Sample("databus_output_state", {**output_labels, "state": str(output["state"])}, 1.0, node, project)
        for metric, more, value in _of_output(output, lag_of(watch.seen.backlog.get(name, {}))):
            if value is not None:
                yield Sample(metric, {**output_labels, **more}, float(value), node, project)


def _of_output(output: Mapping[str, Any], lag: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str], Any]]:
    """Metric, further labels, value; None for an unknown value."""
    for counted in ("rows", "batches", "retries"):
        yield f"databus_output_{counted}_total", {}, output.get(counted) or 0
    flow = output.get("flow") or {}  # a pipeline of an earlier version has none
    yield "databus_output_rows_read_total", {}, flow.get("rows")
    yield "databus_output_bytes_read_total", {}, flow.get("bytes")
    for path, rows in flow.get("dropped", {}).items():
        yield "databus_output_rows_dropped_total", {"filter": path.partition(".")[2]}, rows
    for stage, ms in flow.get("ms", {}).items():
        yield "databus_output_stage_seconds_total", {"stage": stage}, ms / 1e3
    visible = output.get("visible") or {}
    for bound, count in visible.get("buckets", {}).items():
        yield f"{VISIBLE}_bucket", {"le": bound}, count
    yield f"{VISIBLE}_sum", {}, visible.get("sum_s")
    yield f"{VISIBLE}_count", {}, visible.get("count")
    yield "databus_output_lag_seconds", {}, lag["lag_s"]
    yield "databus_output_lag_rows", {}, lag["lag_rows"]
    yield "databus_output_held", {}, lag["held"]
    yield "databus_output_dead_letters", {}, lag["dead_letters"]
    yield "databus_journal_breaks", {}, output.get("journal_breaks")


def _of_sources(watch: Watch, labels: dict[str, str]) -> Iterator[Sample]:
    for name, source in watch.seen.status.get("sources", {}).items():
        source_labels, node = {**labels, "physical": name}, f"{watch.name}/sources.{name}"
        project = source.get("project") or watch.project
        if source.get("state"):
            yield Sample("databus_capture_state", {**source_labels, "state": str(source["state"])}, 1.0, node, project)
        if isinstance(watch.part, PipelinePart):
            captured = float(bool(source.get("is_well", True)))
            yield Sample("databus_pipeline_source_captured", {**labels, "source": name}, captured, node, project)
        for metric, value, unit in (
            ("databus_capture_lag_seconds", source.get("lagMs"), 1e3),
            ("databus_capture_rows_total", source.get("rows"), 1),
            ("databus_capture_bytes_total", source.get("bytes"), 1),
            ("databus_capture_lag_bytes", source.get("lagBytes"), 1),
            ("databus_capture_retention_left_seconds", source.get("retentionLeftMs"), 1e3),
            ("databus_disk_free_ratio", source.get("diskFree"), 1),
        ):
            if value is not None:
                yield Sample(metric, source_labels, float(value) / unit, node, project)
