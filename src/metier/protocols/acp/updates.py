"""A run as session updates for an editor: messages, thoughts, tool calls with diffs, plan and usage."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from metier.events.record import EventRecord
from metier.events.step import StepStarted
from metier.providers.base import Delta
from metier.telemetry.redaction import Redactor
from metier.telemetry.sanitize import SUSPECT, sanitize
from metier.views.fold import fold
from metier.views.run_view import RunView, StepView

type Update = dict[str, Any]
type Send = Callable[[Update], None]

MAX_DIFF_BYTES = 1_000_000
_KINDS = {
    "Read": "read",
    "Write": "edit",
    "Edit": "edit",
    "Glob": "search",
    "Grep": "search",
    "Bash": "execute",
    "script_run": "execute",
    "WebFetch": "fetch",
    "WebSearch": "fetch",
}
_MAX_HELD_LENGTH = 4096
"""Characters held back of an incomplete word that has control or invisible characters."""
_CHANGING = frozenset({"Write", "Edit"})
_STATES = {"running": "in_progress", "waiting": "pending", "succeeded": "completed"}
# The protocol has no word for an entry that was dropped.
_PLAN = {"pending": "pending", "in_progress": "in_progress", "done": "completed", "dropped": "completed"}
_END_OF_REPLY = frozenset({"llm_response_received", "llm_request_failed"})


class RunUpdates:
    """Sends the updates of a run, live or read from its event log. A sink of its events."""

    def __init__(self, workspace: Path, redactor: Redactor, send: Send) -> None:
        self.view = RunView()
        self.said = ""
        """The shown part of the last reply."""
        self._workspace = workspace
        self._redactor = redactor
        self._send = send
        self._text = redactor.stream()
        self._thought = redactor.stream()
        self._held: dict[str, str] = {}
        """The end of the text so far: invisible characters can be checked only in a complete word."""
        self._sent: dict[str, StepView] = {}
        self._before: dict[str, str | None] = {}
        """The texts of files before a step changes them."""

    def write(self, record: EventRecord) -> None:
        if record.event_type in _END_OF_REPLY:
            self._flush()
        plan, usage = self.view.plan, self.view.usage
        self.view = fold(self.view, record)
        for call_id, step in list_calls(self.view):
            if isinstance(record.payload, StepStarted) and step.state == "running" and step.tool in _CHANGING:
                # Before the step starts, because the step changes the file.
                path = find_path(step.arguments, self._workspace)
                self._before.setdefault(call_id, None if path is None else read_text(path))
            # By identity: views are immutable, so another object means that the step changed.
            if self._sent.get(call_id) is not step and step.kind != "control":
                self._tell_step(call_id, step)
        if self.view.plan != plan:
            self._send({"sessionUpdate": "plan", "entries": build_plan(self.view)})
        if self.view.usage != usage:
            self._send(build_usage(self.view))

    def close(self) -> None:
        """Do nothing: child runs write into the same sink."""

    def observe(self, delta: Delta) -> None:
        """Show a piece of a reply. The text of a failed attempt stays on screen."""
        match delta.kind:
            case "text":
                self._show("agent_message_chunk", self._text.feed(delta.text))
            case "thinking":
                self._show("agent_thought_chunk", self._thought.feed(delta.text))
            case "restart":
                self._text, self._thought, self.said = self._redactor.stream(), self._redactor.stream(), ""
                self._held = {}

    def say(self, text: str) -> None:
        """Send a message from Metier."""
        if text:
            self._send(build_message("agent_message_chunk", sanitize(text)))

    def finish(self, result: str) -> None:
        """Send the answer, unless it was streamed."""
        self._flush()
        text = sanitize(self._redactor.redact(result)).strip()
        if text and not self.said.strip().endswith(text):
            self.say(text)

    def _flush(self) -> None:
        self._show("agent_message_chunk", self._text.close())
        self._show("agent_thought_chunk", self._thought.close())
        self._text, self._thought = self._redactor.stream(), self._redactor.stream()
        held, self._held = self._held, {}
        for kind, text in held.items():
            self._send_text(kind, sanitize(text))

    def _show(self, kind: str, arrived: str) -> None:
        text = self._held.pop(kind, "") + arrived
        cut = max(text.rfind(" "), text.rfind("\n")) + 1
        if len(text) - cut <= _MAX_HELD_LENGTH and SUSPECT.search(text, cut):
            text, self._held[kind] = text[:cut], text[cut:]
        self._send_text(kind, sanitize(text))

    def _send_text(self, kind: str, text: str) -> None:
        if text:
            self.said += text if kind == "agent_message_chunk" else ""
            self._send(build_message(kind, text))

    def _tell_step(self, call_id: str, step: StepView) -> None:
        is_new = call_id not in self._sent
        self._sent[call_id] = step
        update = describe_step(call_id, step, self._workspace)
        content = self._list_diff(call_id, step) or _build_output(step)
        self._send({"sessionUpdate": "tool_call" if is_new else "tool_call_update", **update, "content": content})

    def _list_diff(self, call_id: str, step: StepView) -> list[Update]:
        path = find_path(step.arguments, self._workspace) if call_id in self._before else None
        after = read_text(path) if path is not None and step.state == "succeeded" else None
        if path is None or after is None or after == self._before[call_id]:
            return []
        return [build_diff(path, self._before[call_id], after, redactor=self._redactor)]


def list_calls(view: RunView) -> Iterator[tuple[str, StepView]]:
    """List the steps with IDs that are unique across child runs."""
    for step in view.steps:
        yield f"{view.run_id}:{step.step_id}", step
    for child in view.children:
        yield from list_calls(child)


def describe_step(call_id: str, step: StepView, workspace: Path) -> Update:
    path = find_path(step.arguments, workspace)
    return {
        "toolCallId": call_id,
        "title": f"{step.tool} {step.line}".strip() or step.step_id,
        "kind": get_kind(step.tool),
        "status": _STATES.get(step.state, "failed"),
        "locations": [] if path is None else [{"path": str(path)}],
        "rawInput": step.arguments if isinstance(step.arguments, dict) else {},
    }


def get_kind(tool: str) -> str:
    return _KINDS.get(tool, "other")


def build_message(kind: str, text: str) -> Update:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def build_diff(path: Path, before: str | None, after: str, *, redactor: Redactor) -> Update:
    # None is the protocol's word for a new file.
    old = None if before is None else redactor.redact(before)
    return {"type": "diff", "path": str(path), "oldText": old, "newText": redactor.redact(after)}


def build_plan(view: RunView) -> list[Update]:
    # The protocol requires a priority, and plans have none.
    return [{"content": step.step, "priority": "medium", "status": _PLAN[step.status]} for step in view.plan]


def build_usage(view: RunView) -> Update:
    update: Update = {"sessionUpdate": "usage_update", "used": view.context.tokens, "size": view.context.limit}
    cost = view.total_usage.known_cost_usd
    return update if cost is None else {**update, "cost": {"amount": cost, "currency": "USD"}}


def find_path(arguments: object, workspace: Path) -> Path | None:
    """Return the file that a call changes; None if it isn't in the workspace."""
    path = arguments.get("path") if isinstance(arguments, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    # The path comes from the model. Without this check, `..` would show the editor a file of another folder.
    found = workspace / path
    return found if found.is_relative_to(workspace) and ".." not in found.parts else None


def read_text(path: Path) -> str | None:
    """Return the text of a file; empty if it isn't text or is too large to show."""
    try:
        if path.resolve() != path or not path.is_file() or path.stat().st_size > MAX_DIFF_BYTES:
            return None  # a link may lead out of the workspace
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _build_output(step: StepView) -> list[Update]:
    text = step.error or step.output
    return [{"type": "content", "content": {"type": "text", "text": text}}] if text else []
