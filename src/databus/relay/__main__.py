"""A relay in a process of its own, without the command line around it.

`python -m databus.relay FILE` runs until a signal. `python -m databus.relay --configured FD` is a pipeline's: FD has
the pickled configuration, and it ends when its standard input does, as it does however the pipeline ends.
"""

import pickle
import signal
import sys
from pathlib import Path
from typing import Final

from databus.core import DatabusError
from databus.operate import LogStyle, configure_logs, end_with_parent, starting
from databus.relay._config import RelayConfig, load_relay
from databus.relay._relay import run_relay

_STOP_S_MAX: Final = 15
"""How long it may take to stop by itself after a pipeline has ended; then it is ended."""


def main() -> int:
    """Run until a signal; errors as one paragraph."""
    configure_logs(style=LogStyle.TEXT)
    try:
        with starting():
            match sys.argv[1:]:
                case ["--configured", descriptor]:
                    config = _given(int(descriptor))
                case [file]:
                    config = load_relay(Path(file))
                case _:
                    sys.stderr.write("usage: python -m databus.relay FILE\n")
                    return 2
        run_relay(config)
    except DatabusError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _given(descriptor: int) -> RelayConfig:
    end_with_parent(signal.SIGTERM, _STOP_S_MAX)
    with open(descriptor, "rb") as file:
        config: RelayConfig = pickle.load(file)  # noqa: S301 - our parent's own
    return config


if __name__ == "__main__":
    sys.exit(main())
