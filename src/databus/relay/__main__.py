"""`python -m databus.relay FILE`: a relay in a process of its own, without the command line around it."""

import sys
from pathlib import Path

from databus.core import DatabusError
from databus.operate import LogStyle, configure_logs, starting
from databus.relay._config import load_relay
from databus.relay._relay import run_relay


def main() -> int:
    """Run until a signal; errors as one paragraph."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m databus.relay FILE\n")
        return 2
    configure_logs(style=LogStyle.TEXT)
    try:
        with starting():
            config = load_relay(Path(sys.argv[1]))
        run_relay(config)
    except DatabusError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
