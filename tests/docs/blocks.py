"""Code blocks of the pages that people read."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@dataclass(frozen=True)
class Block:
    """One fenced block: its page, the line of its first line of code (from 1), its language and its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    found: list[Block] = []
    language: str | None = None
    start, lines = 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if language is None and line.startswith("```"):
            language, start, lines = line.removeprefix("```").strip(), number + 1, []
        elif language is not None and line.strip() == "```":
            found.append(Block(page, start, language, "\n".join(lines) + "\n"))
            language = None
        elif language is not None:
            lines.append(line)
    assert language is None, f"{page.name}: the block that starts before line {start} is never closed"
    return found


def blocks(language: str) -> list[Block]:
    """Every block of a language, in all pages."""
    return [block for page in PAGES for block in blocks_of(page) if block.language == language]
