"""Commands of a workspace for its chats: `.agent/commands/NAME.md`, whose text becomes a message."""

import re
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.files.contained_file import read_contained
from metier.definitions.text.document import parse_document
from metier.errors import UsageError
from metier.lazy_regex import lazy_regex
from metier.runtime.host import Host

FOLDER = Path(".agent") / "commands"
MAX_BYTES = 100_000
_NAME = lazy_regex(r"[a-z0-9][a-z0-9_-]{0,63}")
_PLACE = lazy_regex(r"\$(ARGUMENTS|[1-9])")
_MOST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCommand:
    name: str
    description: str
    body: str

    def fill(self, arguments: str) -> str:
        """The message: `$ARGUMENTS` is everything behind the name, `$1` its first word. Without either, it follows."""
        words = arguments.split()

        def find(place: re.Match[str]) -> str:
            if place[1] == "ARGUMENTS":
                return arguments
            number = int(place[1]) - 1
            return words[number] if number < len(words) else ""

        if not _PLACE.search(self.body):
            return f"{self.body}\n\n{arguments}".strip()
        return _PLACE.sub(find, self.body).strip()


def list_own_commands(place: Host) -> dict[str, OwnCommand]:
    """By name. A file that cannot be read is left out; what a clone says counts when the folder is trusted."""
    folder = place.workspace / FOLDER
    if not place.trust.is_trusted or not folder.is_dir():
        return {}
    files = sorted(file for file in folder.glob("*.md") if _NAME.fullmatch(file.stem))[:_MOST]
    found = (_read(file, place.workspace) for file in files)
    return {command.name: command for command in found if command is not None}


def check_trusted(place: Host, name: str) -> None:
    """Raises `UsageError` where the folder has the command and is not trusted."""
    if not place.trust.is_trusted and _NAME.fullmatch(name) and (place.workspace / FOLDER / f"{name}.md").is_file():
        raise UsageError(
            f"The command '/{name}' came with this folder, which you have not trusted ({place.trust.origin})",
            hint="Read it, then run `agent trust`",
        )


def _read(file: Path, workspace: Path) -> OwnCommand | None:
    try:
        data = read_contained(file, within=workspace, limit=MAX_BYTES)
    except OSError:
        return None
    if len(data) > MAX_BYTES:
        return None
    document = parse_document(data, file=file)
    body = document.body.strip()
    first = next((line.strip("# ").strip() for line in body.splitlines() if line.strip()), "")
    described = document.fields.text("description")
    return OwnCommand(name=file.stem, description=described or first, body=body) if body else None
