"""What a running pipeline is doing, gathered from its events for a screen. Nothing here draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from databus.cli._remedy import NamedRelay, remedy
from databus.cli._screen import Meter, ReaderLine, ScreenView, SourceLine
from databus.core import ordinal_of

_MESSAGE_CHARS_MAX: Final = 400
_HERE: Final = NamedRelay()
LOGGED: Final = frozenset(
    {
        *("started", "retry", "failed", "table_retry", "table_failed", "table_well", "paused", "output_stopped"),
        *(
            "no_source",
            "source",
            "reload",
            "hanging",
            "answered",
            "stopping",
            "relay_died",
            "renamed",
            "refused",
            "untested",
        ),
    }
)
"""Events that the pipeline's log has too: if it goes to the same terminal, the screen leaves them out."""


@dataclass
class _OutputView:
    """One output: what its query does, and up to where it has written each physical source."""

    state: str = "waits to start"
    meter: Meter = field(default_factory=Meter)
    """What it has written."""
    positions: dict[str, int] = field(default_factory=dict)
    """By physical source, the SCN up to which it has written."""


class RunView:
    """Takes events from one thread at a time, sources from a second, and gives its board to a third.

    What is kept is replaced as a whole or grows by single steps, so no reader sees half of anything.
    """

    def __init__(self, outputs: Sequence[str], relay: NamedRelay = _HERE) -> None:
        self._relay = relay
        self._outputs = {name: _OutputView() for name in outputs}
        self._states: Sequence[Mapping[str, Any]] = ()
        self._why_none = ""
        self._doing = "reading the configuration"
        self._stopping = ""
        self.cut_off: Sequence[str] = ()
        self.reasons: Sequence[str] = ()

    def take(self, event: Mapping[str, Any]) -> str:
        """Take an event. Returns a line about it for people, empty for what the board shows anyway."""
        match event["event"]:
            case "batch" | "doing" | "ended" | "reloaded":
                self._quietly(event)
                return ""
            case "advanced":  # for the journal of batches
                return ""
            case "hanging" | "answered":
                return self._hanging(event)
            case "relay":
                self._relay = replace(self._relay, url=event["url"])
            case "stopping":
                self._stopping = f"stopping ({event['why']}); a second Ctrl-C does not wait"
                waits_for = event["waits_for"]
                return f"stopping: {event['why']}" + (f"; {waits_for} has to end first" if waits_for else "")
            case "stopped":
                self._doing, abandoned, self.cut_off = "", event["abandoned"], event["cut_off"] + event["abandoned"]
                self.reasons = event["reasons"]
                parts = ["stopped"]
                if event["failed"]:
                    parts.append(f"failed: {', '.join(event['failed'])}")
                if abandoned:
                    parts.append(f"not waited for: {', '.join(abandoned)}, whose batch comes again")
                if event["cut_off"]:
                    parts.append(f"cut off: {', '.join(event['cut_off'])}")
                return "; ".join(parts)
        self._query(event)
        return _reload(event) if event["event"] == "reload" else _event_text(event)

    def _quietly(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "batch":
            self._batch(event)
        elif event["event"] == "doing":
            self._doing = event["what"]
        elif event["event"] == "reloaded":
            self._outputs = {name: output for name, output in self._outputs.items() if name not in event["removed"]}
            for name in (*event["changed"], *event["added"]):
                self._outputs.setdefault(name, _OutputView()).state = "waits to start"
        else:
            for name in event["outputs"]:
                self._outputs.setdefault(name, _OutputView()).state = "has all that there was"

    def _batch(self, event: Mapping[str, Any]) -> None:
        output = self._outputs.setdefault(event["output"], _OutputView())
        output.state = "running"
        output.meter.add(event.get("rows") or 0, event.get("lag_ms"))
        if "position" in event:
            output.positions[event["physical"]] = event["position"]["scn"]

    def _hanging(self, event: Mapping[str, Any]) -> str:
        output = self._outputs.setdefault(event["output"], _OutputView())
        is_back = event["event"] == "answered"
        output.state = "running" if is_back else "hangs: the target does not answer"
        return f"{event['output']}: the target " + ("answers again" if is_back else "does not answer")

    def _query(self, event: Mapping[str, Any]) -> None:
        states = {
            "started": "waits for the first batch",
            "retry": f"tries again in {event.get('wait_ms', 0) / 1e3:.0f} s: {_short(event.get('message'))}",
            "failed": f"failed: {_short(event.get('message'))}",
            "table_retry": f"running, but for {_short(event.get('message'))}",
            "table_failed": f"running, but for {_short(event.get('message'))}",
            "table_well": "running",
            "paused": "paused; `databus resume` has it go on",
            "output_stopped": "stopped; `databus resume` has it go on",
        }
        state = states.get(event["event"])
        for name in event.get("outputs", ()) if state is not None else ():
            output = self._outputs.setdefault(name, _OutputView())
            goes_on = event["event"] == "started" and output.meter.rows > 0  # as after `databus resume`
            output.state = "running" if goes_on else state or ""

    def sources(self, states: Sequence[Mapping[str, Any]], why_none: str) -> None:
        """Take what the relay says of its sources."""
        self._why_none = why_none
        if states or not why_none:
            self._states = states

    def written(self) -> str:
        """How many rows each output has written, for the end of a run without a screen."""
        counts = ", ".join(f"{name} {output.meter.rows:,}" for name, output in sorted(self._outputs.items()))
        return f"rows in this run: {counts}"

    def board(self) -> ScreenView:
        """What there is to show now."""
        sources = [source_line(state, self._relay) for state in self._states]
        if self._why_none:
            sources.append(SourceLine("relay", "away", _short(self._why_none)))
        doing = ": ".join(text for text in (self._stopping, self._doing) if text)
        return ScreenView(doing, sources, [self._line(name, output) for name, output in sorted(self._outputs.items())])

    def _line(self, name: str, output: _OutputView) -> ReaderLine:
        meter = output.meter
        return ReaderLine(name, meter.rows, meter.rate(), self._behind(output), meter.percentiles(), output.state)

    def _behind(self, output: _OutputView) -> str:
        """Transactions that the relay holds and the output does not; a SQLite source counts its cuts."""
        ends = {state["name"]: state["SCN"] for state in self._states if state["SCN"] is not None}
        known = [ordinal_of(ends[name]) - ordinal_of(scn) for name, scn in output.positions.items() if name in ends]
        return "-" if not known else f"{max(sum(known), 0):,} transactions"


def source_line(state: Mapping[str, Any], relay: NamedRelay = _HERE) -> SourceLine:
    """A source as the relay's /controlSources/status has it, for people."""
    details = [_short(state["message"])] if state["message"] else []
    details += source_details(state)
    if state["lagMs"] is not None:
        details.append(f"captured up to {state['lagMs'] / 1e3:,.1f} s ago" if state["lagMs"] else "captured up to now")
    if what := remedy(state, relay):
        details.append(what)
    return SourceLine(state["name"], state["status"], "; ".join(details))


def source_details(state: Mapping[str, Any]) -> list[str]:
    """What there is to know of a source beside its state: tables that are missing, or are being read."""
    details = [_short(sentence) for sentence in state.get("missingTables", ())]
    if state["snapshots"]:
        names = ", ".join("tables that wait to be read" if table == "*" else table for table in state["snapshots"])
        details.append(f"reading {names}: {state['snapshotRows']:,} rows so far")
    return details


def _reload(event: Mapping[str, Any]) -> str:
    if event["problem"]:
        return f"the file was not taken ({event['by']}), and nothing has changed:\n{event['problem']}"
    words = {"go on": "unchanged", "start again": "changed", "are new": "added", "end": "removed"}
    parts = [f"{what}: {', '.join(event[name])}" for what, name in words.items() if event[name]]
    return f"the file was taken ({event['by']}); {'; '.join(parts)}"


def _event_text(event: Mapping[str, Any]) -> str:
    facts = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("event", "at_us", "pipeline"))
    return f"{event['event']}  {facts}"


def _short(text: Any) -> str:
    line = " ".join(str(text or "").split())
    return line if len(line) <= _MESSAGE_CHARS_MAX else f"{line[:_MESSAGE_CHARS_MAX]}..."
