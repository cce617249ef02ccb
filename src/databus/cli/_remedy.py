"""What has a suspended source go on, as it is to be typed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from databus.cli._app import DEFAULT_RELAY


@dataclass(frozen=True)
class NamedRelay:
    """A relay as commands name it."""

    url: str = DEFAULT_RELAY
    pipeline: Path | None = None
    """The file of the pipeline whose own it is; None for a service."""
    token_file: Path | None = None

    @property
    def options(self) -> str:
        """What a command that asks the relay needs."""
        url = "" if self.url == DEFAULT_RELAY else f" --relay {self.url}"
        return url + ("" if self.token_file is None else f" --token-file {quote(str(self.token_file))}")


def remedy(state: Mapping[str, Any], relay: NamedRelay) -> str:
    """What to do about a source, by its state as the relay says it; empty where there is nothing to do."""
    name = state["name"]
    if state["status"] == "paused":
        return f"to continue capture: databus sources resume {name}{relay.options}"
    if state["status"] != "suspended":
        return ""
    stopped = "relay" if relay.pipeline is None else "pipeline"
    file = quote(str(relay.pipeline or state.get("file") or "FILE"))
    match state.get("remedy", "resume"):  # an older relay does not say
        case "resume":
            return f"remove the reason, then: databus sources resume {name}{relay.options}"
        case "position set":
            what = f"databus position set {file} {name} latest --resnapshot"
            return f"stop the {stopped}, run: {what} (its tables are read again), and start it again"
        case "skip":
            what = f"databus skip {file} {name} --resnapshot"
            return f"stop the {stopped}, run: {what} (its tables are read again), and start it again"
    return f"do what the reason says, and start the {stopped} again"
