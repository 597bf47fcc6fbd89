"""The code blocks of the documentation, by page, line and language."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHEETS = ("grpo_engine/models/starter/README.md", "grpo_engine/models/starter/guess.md")
PAGES = (
    "README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    *SHEETS,
)
# A block without a language is of the shell if it begins with one of these.
COMMANDS = (
    "make",
    "pip",
    "python",
    "grpo-tui",
    "./grpo-tui",
    "ssh",
    "mlx.launch",
    "mlx_lm.server",
    "echo",
    "$",
)
FENCE = re.compile(r"^```(\w*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A block; `language` is python, sh, yaml, json, toml, diff or text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file that a block shows, named by its first line; empty for a script."""
        named = re.match(r"# ([\w/]+\.(?:py|yaml))\n", self.text)
        return named[1] if named and self.language in ("python", "yaml") else ""

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block; of a transcript those after `$`."""
        joined = self.text.replace("\\\n", " ").splitlines()
        if self.text.startswith("$ "):
            return [line[2:] for line in joined if line.startswith("$ ")]
        return [line.strip() for line in joined if line.strip()]


def blocks(page: str) -> list[Block]:
    """Every fenced block, and every indented one that follows a blank line."""
    found = []
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    index = 0
    while index < len(lines):
        start, fence = index, FENCE.match(lines[index])
        index += 1
        if fence:
            while lines[index] != "```":
                index += 1
            found.append(_block(page, start + 2, fence[1], lines[start + 1 : index]))
            index += 1
        elif lines[start].startswith("    ") and not lines[start - 1].strip():
            while index < len(lines) and (lines[index].startswith("    ") or not lines[index]):
                index += 1
            part = [line[4:] for line in lines[start:index]]
            found.append(_block(page, start + 1, "", part))
    return found


def _block(page: str, line: int, language: str, lines: list[str]) -> Block:
    text = "\n".join(lines).strip("\n") + "\n"
    first = text.split(maxsplit=1)[0]
    if not language:
        language = "sh" if first in COMMANDS else "json" if first.startswith("{") else "text"
        language = "yaml" if re.match(r"\w+:\n", text) else language
    return Block(page, line, {"bash": "sh", "shell": "sh"}.get(language, language), text)
