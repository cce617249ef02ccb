"""`promtool`, which says when Prometheus' rules fire: Debian's package, unpacked."""

from pathlib import Path
from typing import Final

from databus.testing.servers._debian import DebianPackages, unpacked_packages

_PACKAGES: Final = DebianPackages("bookworm", ("prometheus",))


def promtool() -> Path:
    """The program, fetched if need be. Raises `ServerMissing`."""
    return unpacked_packages("promtool-v1", _PACKAGES) / "usr/bin/promtool"
