"""The texts that ship for models: Markdown files beside this one, one per subject. Constants of the package, read once.

A text is quoted as it stands, without the blank lines around it. What a file says about a tool is read by `tool_texts`.
"""

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def load_text(name: str) -> str:
    """The text of `name`, a path below this folder without its ending. Raises `FileNotFoundError`."""
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8").strip()


@cache
def has_text(name: str) -> bool:
    return (_FOLDER / f"{name}.md").is_file()
