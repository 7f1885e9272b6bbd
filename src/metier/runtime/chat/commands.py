"""Commands in a chat: custom ones in `.agent/commands/NAME.md`, and shell commands that the user types after `!`."""

import re
import uuid
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.definitions.files.contained_path import read_contained
from metier.definitions.text.front_matter import parse_document
from metier.definitions.text.yaml_text import flat_texts
from metier.errors import UsageError
from metier.messages import ModelReply, TextPart, ToolCallPart, ToolResultPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.host import Host
from metier.runtime.records.index_rows import TYPED
from metier.telemetry.sanitize import sanitize

COMMANDS_FOLDER = Path(".agent") / "commands"
MAX_COMMAND_BYTES = 100_000
# No dots and slashes, because the name becomes part of a path.
_COMMAND_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_PLACEHOLDER = re.compile(r"\$(ARGUMENTS|[1-9])")
_MAX_OWN_COMMANDS = 200

TOOL = "Bash"
MARK = "!"
"""Prefix of a line with a command."""
_MAX_OUTPUT = 4_000


class OwnCommand(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    body: str

    def fill(self, arguments: str) -> str:
        """Fill in the template: `$ARGUMENTS` is the text after the name, `$1` its first word. Else append the text."""
        words = arguments.split()

        def find(host: re.Match[str]) -> str:
            if host[1] == "ARGUMENTS":
                return arguments
            number = int(host[1]) - 1
            return words[number] if number < len(words) else ""

        if not _PLACEHOLDER.search(self.body):
            return f"{self.body}\n\n{arguments}".strip()
        return _PLACEHOLDER.sub(find, self.body).strip()


def list_own_commands(host: Host) -> dict[str, OwnCommand]:
    """List custom commands by name, without unreadable files. An untrusted folder has none."""
    folder = host.workspace / COMMANDS_FOLDER
    # The text of a command becomes a message of the user, so an untrusted folder must not define any.
    if not host.trust.is_trusted or not folder.is_dir():
        return {}
    files = sorted(file for file in folder.glob("*.md") if _COMMAND_NAME.fullmatch(file.stem))[:_MAX_OWN_COMMANDS]
    found = (_read(file, host.workspace) for file in files)
    return {command.name: command for command in found if command is not None}


def check_trusted(host: Host, name: str) -> None:
    """Raise `UsageError` if an untrusted folder defines the command."""
    if (
        not host.trust.is_trusted
        and _COMMAND_NAME.fullmatch(name)
        and (host.workspace / COMMANDS_FOLDER / f"{name}.md").is_file()
    ):
        raise UsageError(
            f"The command '/{name}' came with this folder, which you have not trusted ({host.trust.origin})",
            hint="Review it, then run `agent trust`",
        )


def _read(file: Path, workspace: Path) -> OwnCommand | None:
    try:
        data = read_contained(file, within=workspace, limit=MAX_COMMAND_BYTES)
    except OSError:
        return None
    if len(data) > MAX_COMMAND_BYTES:
        return None
    document = parse_document(data, file=file)
    body = document.body.strip()
    first = next((line.strip("# ").strip() for line in body.splitlines() if line.strip()), "")
    value = document.root.find_value("description")
    described = sanitize(", ".join(flat_texts(value))) if value else ""
    return OwnCommand(name=file.stem, description=described or first, body=body) if body else None


# A typed command is a run with one call, so that rules, sandbox and undo work like for every call. This provider
# requests the call and then returns its output as the reply, so that later turns contain it.
class TypedCommand:
    """A provider that calls one command and then returns its result."""

    name = TYPED

    def __init__(self, command: str) -> None:
        self._command = command

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        del observe
        results = [part for part in request.messages[-1].parts if isinstance(part, ToolResultPart)]
        if results:
            text = results[-1].text
            said = (
                text
                if len(text) <= _MAX_OUTPUT
                else f"{text[:_MAX_OUTPUT]}\n[… {len(text) - _MAX_OUTPUT} more characters]"
            )
            return self._build(request, TextPart(text=said or "(no output)"))
        call_id = f"typed-{uuid.uuid4().hex[:8]}"
        return self._build(request, ToolCallPart(id=call_id, name=TOOL, arguments={"command": self._command}))

    async def count_tokens(self, request: ModelRequest) -> int | None:
        del request
        return None

    async def close(self) -> None:
        """Close the provider, which holds nothing."""

    def _build(self, request: ModelRequest, part: TextPart | ToolCallPart) -> ModelReply:
        is_call = isinstance(part, ToolCallPart)
        return ModelReply(
            parts=(part,),
            stop_reason="tool_calls" if is_call else "end",
            usage=Usage(),
            provider=TYPED,
            model=request.model,
        )


def use_typed(host: Host, command: str) -> Host:
    """Return the host with a provider that only runs this command."""
    model = host.settings.model.model_copy(update={"name": TYPED, "allowed_models": ()})
    settings = host.settings.model_copy(update={"model": model})
    return replace(host, provider=TypedCommand(command), settings=settings)


# Typing the command is the approval. It goes through the same record as every other one.
class TypedApproval:
    """Approves exactly the command that the user typed. Denied commands stay denied."""

    def __init__(self, command: str, *, by: str) -> None:
        self._command = command
        self._by = by

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        if question.tool != TOOL or question.arguments.get("command") != self._command:
            return None
        return Reply(decision="approved", by=self._by, reason="Typed by the person")
