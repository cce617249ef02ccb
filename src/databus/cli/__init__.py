"""The command `databus`: one file a verb."""

from importlib import import_module
from typing import Final

from databus.cli._app import run_app

_VERBS: Final = (
    "archive",
    "bench",
    "check_source",
    "checkpoints",
    "compare",
    "control",
    "dead_letters",
    "demo",
    "graph",
    "init",
    "plugins",
    "position",
    "prepare",
    "rebuild",
    "relay",
    "run",
    "schema",
    "snapshot",
    "sources",
    "sqlite",
    "status",
    "tail",
    "test",
    "validate",
    "warm_up",
)

for _verb in _VERBS:  # importing a verb's file adds the verb
    import_module(f"databus.cli.{_verb}")

main = run_app

__all__ = ["main"]
