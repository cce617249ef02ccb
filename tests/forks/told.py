"""Says what it is; run as `python -m tests.forks.told FILE ...`, forked and not. With `wait` it waits for its end."""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

# `_` and `PWD` are what a shell says, of what it starts and of its folder.


def told() -> dict[str, object]:
    names = ("__name__", "__package__")
    return {
        "arguments": sys.argv,
        "environment": {name: value for name, value in os.environ.items() if name not in ("_", "PWD")},
        "folder": str(Path.cwd()),
        "path": sys.path,
        "files": sorted(int(each.name) for each in Path("/proc/self/fd").iterdir())[:4],
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "hash": hash("a text"),
        "interrupt": str(signal.getsignal(signal.SIGINT)),
        "main": [globals()[name] for name in names],
        "is_main": sys.modules["__main__"].__dict__.get("told") is told,
        "deaf": [each for each in signal.Signals if signal.getsignal(each) == signal.SIG_IGN],
        "module": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({**told(), "preloaded": "pyarrow" in sys.modules, "parent": os.getppid()}))
    sys.stdout.write("said\n")
    if "wait" in sys.argv:
        sys.stdout.flush()
        signal.pause()
    sys.exit(7)
