"""A browser without a screen: Debian's headless Chromium with all that it needs, unpacked, and driven through its port.

It is for the tests of pages: `url` is where its DevTools answer. It reaches nothing but this machine.
"""

import os
import re
import time
from pathlib import Path
from typing import Final

from databus.core import ServiceUnavailable
from databus.testing.servers._debian import DebianPackages, libraries_in, unpacked_packages
from databus.testing.servers._server_process import ServerProcess

_PACKAGES: Final = DebianPackages("bookworm", ("chromium-headless-shell", "fonts-dejavu-core"))
_PROGRAM: Final = "usr/lib/chromium/chromium-headless-shell"
_START_S_MAX: Final = 60.0
_ASK_S: Final = 0.02
_LISTENS: Final = re.compile(r"DevTools listening on (ws://\S+)")
_OPTIONS: Final = (
    "--no-sandbox",  # it shows our pages alone, and root may have no other
    "--disable-gpu",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_FONTS: Final = """\
<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


class Chromium(ServerProcess):
    """One browser. Made stopped; as a context it is started, and ended."""

    kind = "chromium"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = ""
        """Where it takes commands, by the protocol of DevTools."""

    @staticmethod
    def prepare() -> Path:
        """Fetch it, if need be. Raises `ServerMissing`."""
        return unpacked_packages("chromium-v1", _PACKAGES)

    def start(self) -> None:
        tree = self.prepare()
        libraries = libraries_in(tree)
        fonts = self.folder / "fonts.conf"
        fonts.write_text(_FONTS.format(fonts=tree / "usr/share/fonts", cache=self.folder / "fonts"))
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'pulseaudio'}:{tree / 'lib/x86_64-linux-gnu'}",
            "FONTCONFIG_FILE": str(fonts),
        }
        command = [str(tree / _PROGRAM), *_OPTIONS, f"--user-data-dir={self.folder / 'profile'}"]
        begins = self._launch(command, environment)
        deadline = time.monotonic() + _START_S_MAX
        while (address := _LISTENS.search(self._said(begins))) is None:
            if not self.is_running or time.monotonic() > deadline:
                raise ServiceUnavailable(f"{self.kind} did not come up: {self._said(begins)[-500:]}")
            time.sleep(_ASK_S)  # it says so in its log alone
        self.url = address[1]

    def _said(self, begins: int) -> str:
        return self.log_file.read_bytes()[begins:].decode(errors="replace")

    def close(self) -> None:
        self.kill()
