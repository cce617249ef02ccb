"""axe-core on a page: names, contrasts, roles, order; what a reader of screens needs."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from databus.testing.servers import ServerMissing
from databus.testing.servers._fetch import kept
from tests.dashboard.browser import Page

_AXE: Final = ("axe-core@4.14.1", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c")


def axe_text() -> str:
    """The library. Skips the test where there is no npm, or it is away."""
    package, sha256 = _AXE

    def fetch(draft: Path) -> None:
        done = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=draft, capture_output=True, timeout=120, check=False
        )
        if done.returncode:
            raise ServerMissing(f"{package} could not be fetched")
        subprocess.run(["tar", "xf", done.stdout.decode().strip()], cwd=draft, check=True)

    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    try:
        text = (kept(package.replace("@", "-"), fetch) / "package" / "axe.min.js").read_bytes()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    assert hashlib.sha256(text).hexdigest() == sha256
    return text.decode()


def violations(page: Page) -> list[Any]:
    """What it finds on a page that has it; each with the first place."""
    told = page.js("axe.run().then((r) => JSON.stringify(r.violations.map((v) => [v.id, v.nodes[0].html])))")
    return list(json.loads(told))
