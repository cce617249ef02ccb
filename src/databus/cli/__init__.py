"""The command `databus`: one file a verb."""

import sys
from importlib import import_module
from typing import Final

_VERBS: Final = (
    "archive",
    "audit",
    "bench",
    "bootstrap",
    "check_source",
    "checkpoints",
    "compare",
    "consumers",
    "control",
    "dashboard",
    "dead_letters",
    "demo",
    "diff",
    "graph",
    "history",
    "init",
    "lineage",
    "plugins",
    "position",
    "prepare",
    "rebuild",
    "relay",
    "rename",
    "run",
    "schema",
    "snapshot",
    "sources",
    "sqlite",
    "state",
    "status",
    "tail",
    "test",
    "trace",
    "validate",
    "warm_up",
)

try:
    from databus.cli._app import run_app

    for _verb in _VERBS:  # importing a verb's file adds the verb
        import_module(f"databus.cli.{_verb}")
except KeyboardInterrupt:  # the imports take some tenths of a second; after them `run_app` catches it
    sys.exit(130)

main = run_app

__all__ = ["main"]
