"""The pages of the documentation, and what is in them: blocks of code, headings, links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
FOLDERS = ("docs", "examples")
PAGES = [
    *(ROOT / name for name in TOP if (ROOT / name).is_file()),
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))),
]

_BLOCK = re.compile(r"^```(?P<language>\w*)(?P<words>[^\n]*)\n(?P<text>.*?)^```|^<!-- (?P<note>[\w-]+)(?P<rest>.*?)-->",
                    re.DOTALL | re.MULTILINE)  # fmt: skip
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block. words: what stands behind its language, which no reader sees: `file=printer.py`, `background`.

    A comment such as `<!-- ctrl-c -->` is a block of the language `<!--`, with the comment's words.
    """

    language: str
    words: dict[str, str]
    text: str


def blocks(page: Path) -> list[Block]:
    """All of a page's blocks, in order."""
    found = []
    for each in _BLOCK.finditer(page.read_text()):
        if each["note"]:
            found.append(Block("<!--", {each["note"]: ""}, each["rest"].strip(" :\n")))
        else:
            words = (word.partition("=") for word in each["words"].split())
            found.append(Block(each["language"], {name: value for name, _, value in words}, each["text"]))
    return found


def prose(page: Path) -> str:
    """A page without its blocks, in which a comment looks like a heading."""
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`, as GitHub makes it of the headings."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        if re.match(r"#{1,6} ", line):
            words = re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
            again = next(n for n in range(100) if (f"{words}-{n}" if n else words) not in found)
            found.add(f"{words}-{again}" if again else words)
    return found


def links(page: Path) -> list[tuple[str, str]]:
    """Each link inside the repository: the file, empty for the page itself, and the anchor, empty for none."""
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))
    return [(file, anchor) for file, _, anchor in (to.partition("#") for to in targets) if "://" not in file]
