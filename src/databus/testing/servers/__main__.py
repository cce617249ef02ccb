"""`python -m databus.testing.servers [KIND...]`: fetch servers and make their empty data folders, ahead of the tests.

Says for each whether it is there. Never fails for one that this machine cannot have: its tests are skipped then.
"""

import sys
import tempfile
from pathlib import Path

from databus.core import DatabusError
from databus.testing.servers import KINDS, open_server


def main() -> None:
    """Prepare the servers named on the command line, or all."""
    for kind in sys.argv[1:] or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = f"kept in {open_server(kind, Path(folder)).prepare().parent}"
            except DatabusError as error:
                said = f"absent: {error}"
        print(f"{kind}: {said}", flush=True)  # noqa: T201


main()
