"""Read the code blocks of the pages, and the mark that says how each is tested.

A mark is an HTML comment on the line above a block, invisible to readers of the page:

    <!-- test -->                       executed command by command; the lines below a command are its expected output
    <!-- test, exit code 2 -->          the same, with the exit code of the last command
    <!-- test with rabbitmq -->         executed only if RabbitMQ is available
    <!-- test in another terminal -->   started in the background until the end of the page
    <!-- file: PATH -->                 written to that file of the workspace
    <!-- checked as PATH -->            a file or a part of one, checked by the validator of its kind
    <!-- checked by tests/FILE -->      executed by that test
    <!-- from PATH -->                  quoted from that file of the repository
    <!-- piece -->                      a part of a program: it compiles, and its imports exist
    <!-- needs … -->                    not executed: it needs one of `NEEDS`
    <!-- output -->                     a drawing or output

Commands that the page doesn't show, such as earlier work of the reader:

    <!-- prepare
    agent init --provider offline
    -->
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted(
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if path.parent != REFERENCE
)
"""All pages except the generated reference, whose examples `tests/cli/test_help_examples.py` runs."""

NEEDS = ("a key", "a package index", "a remote server", "a person", "an editor", "another system", "the repository")
FOUND = re.compile(
    r"^<!-- (?P<first>prepare(?: with \w+)?)\n(?P<prepared>.*?)^-->$"
    r"|^(?:<!-- (?P<mark>[^\n]*?) -->\n)?(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(
    r"(?:test|prepare)(?P<apart> in another terminal)?(?: with (?P<has>\w+))?(?:, exit code (?P<code>\d+))?"
    r"|file: (?P<path>\S+)"
    r"|checked as (?P<kind>\S+)"
    r"|checked by (?P<test>tests/\S+\.py)"
    r"|from (?P<source>\S+)"
    r"|(?P<piece>piece)"
    rf"|needs (?P<needs>{'|'.join(NEEDS)})"
    r"|(?P<output>output)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def meaning(self) -> dict[str, str | None]:
        """Return the parts of the mark; empty without a valid mark."""
        found = MARK.fullmatch(self.mark)
        return found.groupdict() if found else {}

    @property
    def is_typed(self) -> bool:
        return self.mark.startswith(("test", "prepare")) and bool(self.meaning)

    @property
    def is_hidden(self) -> bool:
        return self.mark.startswith("prepare")


def read_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for found in FOUND.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["prepared"] is not None:
            commands = "".join(f"$ {each}\n" for each in found["prepared"].splitlines())
            yield Block(page=page, line=line, language="console", text=commands, mark=found["first"])
        else:
            yield Block(page=page, line=line, language=found["language"], text=found["text"], mark=found["mark"] or "")
