"""One session of an editor: a conversation, its prompts and turns, and its permission and question dialogs."""

import base64
import binascii
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import anyio
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.definitions.names import PROFILES, Profile
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import LogError, UsageError
from metier.ids import get_user
from metier.protocols.acp.connection import INVALID_PARAMS, Connection, EditorGone, Params, Refusal
from metier.protocols.acp.updates import RunUpdates, Update, build_diff, build_message, find_path, get_kind, read_text
from metier.protocols.forms import build_schema, read_values
from metier.runtime.answers import Answer, check_answer
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.attachments import GivenFile
from metier.runtime.chat.chats import Chat
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.driver import DriveOptions
from metier.runtime.runs import Runtime
from metier.runtime.status import RunStatus, get_status
from metier.runtime.workspace.agents import BUILT_IN
from metier.runtime.workspace.lookup import list_ids
from metier.telemetry.call_text import show_call, show_call_text
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.tools.media import get_media_type
from metier.views.user_question import DEFAULT_FIELD

MAX_PROMPT_LENGTH = 1_000_000
"""Characters of the text."""
_FILES_ONLY = "See the attached files."


class Prompt(Struct, frozen=True):
    text: str
    given: tuple[GivenFile, ...] = ()
    """Attached files: contents of buffers, pictures, documents."""


def read_prompt(blocks: object) -> Prompt:
    """Read a prompt. Raises `Refusal`."""
    if not isinstance(blocks, list):
        raise Refusal(INVALID_PARAMS, "A prompt is a list of blocks")
    texts: list[str] = []
    given: list[GivenFile] = []
    for number, block in enumerate(cast("list[object]", blocks), start=1):
        found = _read_block(cast("Params", block), number) if isinstance(block, dict) else ""
        if isinstance(found, GivenFile):
            given.append(found)
        else:
            texts.append(found)
    text = "\n\n".join(each for each in texts if each.strip()) or (_FILES_ONLY if given else "")
    if not text:
        raise Refusal(INVALID_PARAMS, "The prompt says nothing")
    if len(text) > MAX_PROMPT_LENGTH:
        raise Refusal(INVALID_PARAMS, f"The prompt is longer than {MAX_PROMPT_LENGTH} characters")
    return Prompt(text, tuple(given))


def _read_block(block: Params, number: int) -> str | GivenFile:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource_link":
            # A link comes without content; the agent reads the file by its tools, under the rules.
            return f"[file {_name_file(str(block.get('uri', '')))}]"
        case "resource":
            resource: object = block.get("resource")
            return _read_resource(cast("Params", resource) if isinstance(resource, dict) else {})
        case "image":
            name = _name_file(str(block.get("uri") or "")) or f"picture-{number}"
            return _check_picture(GivenFile(name, _decode(block.get("data"))))
        case _:
            raise Refusal(INVALID_PARAMS, f"Blocks of type {str(block.get('type'))[:40]!r} are not taken")


def _read_resource(resource: Params) -> str | GivenFile:
    """Return the text of a buffer or the bytes of a file; only the name if there is neither."""
    name = _name_file(str(resource.get("uri", "")))
    if isinstance(text := resource.get("text"), str):
        return GivenFile(name, text.encode("utf-8", "replace"))
    if "blob" in resource:
        return GivenFile(name, _decode(resource["blob"]))
    return f"[file {name}]"


def _check_picture(given: GivenFile) -> GivenFile:
    if not get_media_type(given.data):
        raise Refusal(INVALID_PARAMS, "The bytes of an image are no picture that is known")
    return given


def _decode(data: object) -> bytes:
    try:
        # Without `validate`, other characters would be dropped and the bytes be wrong.
        return base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(INVALID_PARAMS, "The bytes of a block are not base64") from error


def _name_file(uri: str) -> str:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    return unquote(parts.path) if parts.scheme == "file" else uri


ANSWER_SECONDS = 10.0
"""Timeout for requests about files. After that a step uses the file on disk."""
MAX_CHARACTERS = 5_000_000

_MODES: dict[Profile, str] = {
    "permissive": "No approvals required.",
    "guarded": "Asks before changes.",
    "strict": "Asks before changes, and runs in a sandbox.",
}
_ALLOW, _ALWAYS, _REJECT = "allow", "allow_always", "reject"
_OPTIONS = [
    {"optionId": _ALLOW, "name": "Allow", "kind": "allow_once"},
    {"optionId": _ALWAYS, "name": "Allow this tool for the rest of the turn", "kind": "allow_always"},
    {"optionId": _REJECT, "name": "Reject", "kind": "reject_once"},
]
COMMANDS = {
    "compact": "Summarize the conversation so far.",
    "undo": "Undo the last turn. Its run stays in the store.",
    "facts": "List remembered facts.",
    "remember": "Remember a fact: name: fact.",
    "forget": "Forget a fact by name.",
}
"""Slash commands."""
_HINTED = ("remember", "forget")


class EditorBuffers:
    """Files through the editor, as far as the editor supports it."""

    def __init__(self, connection: Connection, capabilities: Params) -> None:
        files: object = capabilities.get("fs")
        offered = cast("Params", files) if isinstance(files, dict) else {}
        self._can_read = offered.get("readTextFile") is True
        self._can_write = offered.get("writeTextFile") is True
        self._connection = connection
        self.session_id = ""

    async def read(self, path: Path) -> str | None:
        if not self._can_read:
            return None
        with anyio.move_on_after(ANSWER_SECONDS), suppress(EditorGone, Refusal):
            answer = await self._connection.request("fs/read_text_file", self._name(path))
            content = answer.get("content")
            return content if isinstance(content, str) and len(content) <= MAX_CHARACTERS else None
        return None

    async def save(self, path: Path, text: str) -> None:
        if self._can_write:
            with anyio.move_on_after(ANSWER_SECONDS), suppress(EditorGone, Refusal):
                await self._connection.request("fs/write_text_file", {**self._name(path), "content": text})

    def _name(self, path: Path) -> Params:
        return {"sessionId": self.session_id, "path": str(path)}


class Session:
    def __init__(
        self, connection: Connection, chat: Chat, *, workspace: Path, capabilities: Params, mode: Profile
    ) -> None:
        self.chat = chat
        self._buffers = EditorBuffers(connection, capabilities)
        self._buffers.session_id = chat.context_id
        self.workspace = workspace
        self._connection = connection
        elicitation: Any = capabilities.get("elicitation")
        self._has_forms = isinstance(elicitation, dict) and elicitation.get("form") is not None  # pyright: ignore[reportUnknownMemberType]
        # The editor is a program: it may tighten what the user set, and never loosen it.
        self._loosest: Profile = mode
        self.mode: Profile = mode
        self._base = chat.runtime
        self._redactor = build_host_redactor(chat.runtime.host)
        self._stopper: Stopper | None = None
        self._idle = anyio.Event()
        self._idle.set()
        self.set_mode(mode)

    @property
    def id(self) -> str:
        return self.chat.context_id

    @property
    def is_busy(self) -> bool:
        return self._stopper is not None

    def set_mode(self, mode: str) -> None:
        """Set the profile of later turns. Raises `Refusal` for a looser one than that of the settings."""
        allowed = PROFILES[PROFILES.index(self._loosest) :]
        if mode not in allowed:
            raise Refusal(INVALID_PARAMS, f"The mode is one of {', '.join(allowed)}")
        self.mode = allowed[allowed.index(mode)]
        host = self._base.host
        runtime = host.settings.runtime.model_copy(update={"profile": self.mode})
        settings = host.settings.model_copy(update={"runtime": runtime})
        self.chat.runtime = Runtime(replace(host, settings=settings, buffers=self._buffers), self._base.store)

    async def set_option(self, name: str, value: str) -> None:
        """Set an option. Raises `Refusal`, `UsageError` for a model that the agent may not use."""
        if value not in [option["value"] for option in self._get_option(name)["options"]]:
            raise Refusal(INVALID_PARAMS, f"{value!r} is no choice of {name!r}")
        if name == "model":
            await self.chat.use_model(value)
        else:
            self.chat.agent_id, self.chat.model = value, ""
            self.chat.resolve()

    def _get_option(self, name: str) -> Params:
        for option in self.list_options():
            if option["id"] == name:
                return option
        raise Refusal(INVALID_PARAMS, f"There is no option {name!r}")

    def describe_modes(self) -> Params:
        allowed = PROFILES[PROFILES.index(self._loosest) :]
        modes = [{"id": each, "name": each.capitalize(), "description": _MODES[each]} for each in allowed]
        return {"currentModeId": self.mode, "availableModes": modes}

    def list_options(self) -> list[Params]:
        """List the options, model and agent, with their choices."""
        models = self.chat.list_models()
        agents = [BUILT_IN, *list_ids(self.workspace, "agent")]
        return [
            _build_option(
                "model", current=self.chat.answered_by, choices={each: each for each in models}, category="model"
            ),
            _build_option("agent", current=self.chat.agent_id, choices={each: each or "built-in" for each in agents}),
        ]

    def send(self, update: Update) -> None:
        self._connection.notify("session/update", {"sessionId": self.id, "update": update})

    def send_commands(self) -> None:
        commands = [
            {"name": name, "description": text, **({"input": {"hint": "name: fact"}} if name in _HINTED else {})}
            for name, text in COMMANDS.items()
        ]
        self.send({"sessionUpdate": "available_commands_update", "availableCommands": commands})

    async def prompt(self, prompt: Prompt) -> Params:
        """Run a turn until it ends, is canceled, or needs an answer that the editor can't give. Raises `Refusal`."""
        text = prompt.text
        if self.is_busy:
            raise Refusal(INVALID_PARAMS, "A turn of this session is already running")
        # Other words after a slash, such as a path, are a message to the agent.
        name, _, rest = text.strip().removeprefix("/").partition(" ")
        if text.strip().startswith("/") and name in COMMANDS:
            self.send(build_message("agent_message_chunk", await self._run_command(name, rest.strip())))
            return {"stopReason": "end_turn"}
        return await self._drive(prompt)

    async def resume(self) -> None:
        """Continue the open turn of a loaded session, and ask its questions again."""
        turn = await self.chat.find_open_turn()
        # The editor has dialogs for these only. A limit or a step in doubt is resolved elsewhere.
        if not self.is_busy and turn is not None and turn.wait_kind in ("approval", "input", "interrupted"):
            await self._drive(None)

    def cancel(self) -> None:
        if self._stopper is not None:
            self._stopper.request("the editor")

    async def wait_idle(self) -> None:
        """Wait until no turn is running."""
        await self._idle.wait()

    async def _drive(self, prompt: Prompt | None) -> Params:
        # After `session/cancel` only steps get the grace period; the model's reply would not be used.
        stopper = Stopper(self.chat.runtime.host.settings.runtime.signal_grace_seconds, waits_for_model=False)
        updates = RunUpdates(self.workspace, self._redactor, self.send)
        options = DriveOptions(sinks=(updates,), observe=updates.observe, stopper=stopper, ask=self._ask)
        if self._has_forms:
            options = replace(options, ask_question=self._elicit)
        self._stopper, self._idle = stopper, anyio.Event()
        try:
            state = await self._take_turn(prompt, options)
        finally:
            self._stopper = None
            self._idle.set()
        return await self._conclude(state, updates, is_cancelled=bool(stopper.reason == "the editor"))

    async def _take_turn(self, prompt: Prompt | None, options: DriveOptions) -> RunState | None:
        turn = await self.chat.find_open_turn()
        if prompt is None:
            return await self.chat.continue_turn(watch=options)
        if turn is not None and turn.is_asking:
            return await self.chat.continue_turn(_read_answer(turn, prompt.text), options)
        # Not typed: a program sends the text, so mentioned files are attached only if the rules allow reading them.
        return await self.chat.send(prompt.text, options, is_typed=False, given=prompt.given)

    async def _ask(self, question: ApprovalQuestion) -> Reply | None:
        """Show the editor's permission dialog. Return None if it is closed: the approval stays open."""
        asked = question.asked
        call: Params = {
            # The same ID as in the updates of the step, so that the editor shows the question there.
            "toolCallId": f"{question.row.run_id}:{question.row.step_id}",
            "title": f"{question.tool}: {asked.reason}" if asked is not None and asked.reason else question.tool,
            "kind": get_kind(question.tool),
            "status": "pending",
            "rawInput": show_call(dict(question.arguments), self._redactor),
            "content": await self._preview(question),
        }
        try:
            answer = await self._connection.request(
                "session/request_permission", {"sessionId": self.id, "toolCall": call, "options": _OPTIONS}
            )
        except (EditorGone, Refusal):
            return None
        outcome: object = answer.get("outcome")
        said = cast("Params", outcome) if isinstance(outcome, dict) else {}
        chosen = said.get("optionId") if said.get("outcome") == "selected" else None
        if chosen in (_ALLOW, _ALWAYS):
            return Reply(decision="approved", by=get_user(), remember=chosen == _ALWAYS)
        if chosen == _REJECT:
            return Reply(decision="denied", by=get_user(), reason="Rejected in the editor")
        return None

    async def _preview(self, question: ApprovalQuestion) -> list[Update]:
        """Return the changes that the call would make, as far as they are known in advance."""
        path = find_path(question.arguments, self.workspace)
        content = question.arguments.get("content")
        if question.tool == "Write" and path is not None and isinstance(content, str):
            before = await self._buffers.read(path)
            # Against the editor's buffer if possible: the file on disk may lack changes that the user sees.
            return [build_diff(path, read_text(path) if before is None else before, content, redactor=self._redactor)]
        preview = question.asked.preview if question.asked is not None else ""
        text = show_call_text(preview, self._redactor)
        return [{"type": "content", "content": {"type": "text", "text": f"```diff\n{text}\n```"}}] if text else []

    async def _elicit(self, status: RunStatus) -> Answer | None:
        """Show a question as a form of the editor; None if the user doesn't answer it."""
        asked = status.question
        if asked is None or not status.is_asking:
            return None
        form = {
            "sessionId": self.id,
            "mode": "form",
            "message": self._redactor.redact(asked.text),
            "requestedSchema": build_schema(asked),
        }
        given: Params = {}
        with suppress(EditorGone, Refusal):
            given = await self._connection.request("elicitation/create", form)
        content: Any = given.get("content")
        if given.get("action") != "accept":
            return None
        answer = Answer(values=read_values(asked, content if isinstance(content, dict) else None), by=get_user())  # pyright: ignore[reportUnknownArgumentType]
        try:
            check_answer(status, answer)
        except UsageError as error:
            self.send(build_message("agent_message_chunk", error.sentence))
            return None
        return answer

    async def _conclude(self, state: RunState | None, updates: RunUpdates, *, is_cancelled: bool) -> Params:
        if state is None:
            return {"stopReason": "cancelled" if is_cancelled else "end_turn"}
        updates.finish(state.result)
        status = await get_status(self.chat.runtime.store, state)
        if status.failure is not None and status.status != "canceled":
            updates.say(self._redactor.redact(status.failure_text))
        elif status.question is not None and not status.is_final:
            updates.say(self._redactor.redact(status.question.text))
        elif status.pause not in ("", "signal") and not is_cancelled:
            updates.say(f"Waiting: {self._redactor.redact(status.pause_reason)}. agent runs show {state.run_id}")
        usage = updates.view.total_usage
        used: JsonValue = {
            "totalTokens": usage.input_tokens + usage.output_tokens,
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "cachedReadTokens": usage.cached_tokens,
        }
        return {"stopReason": _get_stop_reason(state, is_cancelled=is_cancelled), "usage": used}

    async def replay(self) -> None:
        """Send every turn again, from the conversation and its runs' event logs."""
        for state, turn in await self.chat.list_turns():
            self.send(build_message("user_message_chunk", self._redactor.redact(turn.said)))
            updates = RunUpdates(self.workspace, self._redactor, self.send)
            # The conversation has the answer even if the log of its run is gone or damaged.
            with suppress(LogError):
                for record in read_events(self._base.folder(state.run_id) / FILE_NAME):
                    updates.write(record)
            updates.finish(turn.answer)

    async def _run_command(self, name: str, rest: str) -> str:
        """Run a slash command and return its reply. Raises `UsageError`."""
        match name:
            case "compact":
                return f"Summarized {await self.chat.compact()} turns."
            case "undo":
                return f"Undone: {self._redactor.redact((await self.chat.undo()).said)}"
            case "remember":
                return f"Remembered: {(await self.chat.remember(rest)).text}"
            case "forget":
                await self.chat.forget(rest)
                return "Forgotten."
            case _:
                facts = [f"- {fact.key}: {fact.text}" for fact in await self.chat.list_facts()]
                return "\n".join(facts) or "No facts remembered."


def _read_answer(turn: RunStatus, text: str) -> Answer:
    name = turn.question.names[0] if turn.question is not None else DEFAULT_FIELD
    answer = Answer(values={name: text}, by=get_user())
    check_answer(turn, answer)
    return answer


def _get_stop_reason(state: RunState, *, is_cancelled: bool) -> str:
    # The protocol requires this reason, never an error, after `session/cancel`.
    if is_cancelled or state.status == "canceled":
        return "cancelled"
    return (
        "max_turn_requests"
        if state.failure is not None and state.failure.reason == "max_turns_exceeded"
        else "end_turn"
    )


def _build_option(name: str, *, current: str, choices: dict[str, str], category: str = "") -> Params:
    options = [{"value": value, "name": shown} for value, shown in choices.items()]
    kind = {"category": category} if category else {}
    title = name.capitalize()
    return {"id": name, "name": title, "type": "select", "currentValue": current, "options": options, **kind}
