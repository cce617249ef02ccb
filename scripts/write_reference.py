"""Write the pages that come from the code. `--check` exits with 1 if one is not as the code says."""

import sys
from pathlib import Path

from api_page import api_markdown
from cli_page import cli_markdown
from client_page import client_markdown
from http_page import with_commands
from metrics_page import metrics_markdown
from reference_page import options_markdown, reference_markdown

from databus.bootstrap import BootstrapFile, BootstrapSection, KeepSection, RelayAt

DOCS = Path(__file__).parents[1] / "docs"


def http_markdown() -> str:
    """docs/http.md, whose reference alone comes from the code."""
    return with_commands((DOCS / "http.md").read_text())


def bootstrap_markdown() -> str:
    """docs/bootstrap.md, whose tables of options alone come from the code."""
    begin, end = "<!-- options: from the code, by `make docs` -->", "<!-- end of options -->"
    before, _, rest = (DOCS / "bootstrap.md").read_text().partition(begin)
    made = {"": BootstrapFile, "`relay`": RelayAt, "`bootstrap`": BootstrapSection, "`bootstrap.keep`": KeepSection}
    tables = [f"{name and name + ':'}\n\n{options_markdown(model)}".strip() for name, model in made.items()]
    return f"{before}{begin}\n" + "\n\n".join(tables) + f"\n{end}{rest.partition(end)[2]}"


PAGES = {
    "reference.md": reference_markdown,
    "cli.md": cli_markdown,
    "client-api.md": client_markdown,
    "http.md": http_markdown,
    "bootstrap.md": bootstrap_markdown,
    "api.md": api_markdown,
    "metrics.md": metrics_markdown,
}

if __name__ == "__main__":
    for name, made in PAGES.items():
        path, text = DOCS / name, made()
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            sys.exit(f"docs/{name} is stale; run: make docs")
