"""Write docs/reference.md anew from the option models. `--check` exits with 1 if it is not as the code says."""

import sys
from pathlib import Path

from databus.pipeline import reference_markdown

PATH = Path(__file__).parents[1] / "docs" / "reference.md"

if __name__ == "__main__":
    text = reference_markdown()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PATH.is_file() and PATH.read_text() == text else "docs/reference.md is stale; run: make docs")
    PATH.write_text(text)
