"""What a model is told about where it works: date, system, folder, branch. Read once, when a run begins."""

import sys
from datetime import datetime
from pathlib import Path

from metier.lazy_regex import lazy_regex

_SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_BRANCH = lazy_regex(r"ref: refs/heads/([\w./@+#=-]{1,120})\s*")
_COMMIT = lazy_regex(r"[0-9a-f]{40,64}\s*")
_FOLDER = lazy_regex(r"gitdir: ([^\n]{1,1000})\s*")
MOST_BYTES = 2_000


def describe_surroundings(workspace: Path, now: datetime) -> str:
    """A few lines that stay the same for the whole run, and in its replay."""
    lines = [
        f"- Date at the start of the run: {now:%Y-%m-%d} ({now:%A}, UTC)",
        f"- System: {_SYSTEMS.get(sys.platform, sys.platform)}",
        f"- Workspace folder: {workspace}",
        f"- Git: {_describe_git(workspace)}",
    ]
    return "\n".join(lines)


def _describe_git(workspace: Path) -> str:
    """Read, not asked for: a repository may name programs that git would run."""
    folder = workspace / ".git"
    if linked := _FOLDER.fullmatch(_read(folder)):
        folder = workspace / linked[1]
    head = _read(folder / "HEAD")
    if branch := _BRANCH.fullmatch(head):
        return f"branch {branch[1]}"
    return "no branch, a commit is checked out" if _COMMIT.fullmatch(head) else "not a repository"


def _read(file: Path) -> str:
    try:
        if not file.is_file():  # a pipe would be waited for
            return ""
        with file.open("rb") as stream:
            return stream.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
