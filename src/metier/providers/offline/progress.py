"""The run's progress, read from the messages of a request: the task, the calls, their results. Pure.

Only the structure is read, never the wording: a call is identified by its id, and skill content by its label at the
start of a part. So the text of a tool result or a skill can't change the plan.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from metier.definitions.names import canonical_name, name_capability
from metier.messages import Message, TextPart, ToolCallPart, ToolResultPart
from metier.providers.offline.plan import ScriptCall

STEP_TITLE = "# This step\n\n"
"""First words of the prompt layer for a step of a structured task."""
DONE_TITLE = "Done means:\n"
"""First words of the list of acceptance criteria."""
SCHEMA_TITLE = "The result is JSON by this schema, and nothing else: "

# Bounded digits, because other models may have written the IDs and `int` limits its input.
_CALL_ID = re.compile(r"offline-(\d{1,9})-(\d{1,9})")
_DISCLOSED = re.compile(r'<skill-content skill="([\w.-]+)" path="SKILL\.md')


class Attempt(Struct, frozen=True, kw_only=True):
    """A script that was run for a step."""

    step: int
    call: ScriptCall
    ok: bool
    text: str
    """The tool's result, or the reason that there is none."""


class Progress(Struct, frozen=True, kw_only=True):
    turn: int = 1
    """The number of the current turn."""
    active_skill: str = ""
    """The last known active skill."""
    fallback: str = ""
    """The skill that became active after the last script failed."""
    attempts: tuple[Attempt, ...] = ()
    rejected: tuple[tuple[int, str], ...] = ()
    """Steps whose skill could not be activated, with the reason."""
    forgotten: int = 0
    """Number of the last step whose turn is no longer in the messages."""

    def list_attempts(self, step: int) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.step == step]

    @property
    def has_results(self) -> bool:
        return self.forgotten > 0 or any(attempt.ok for attempt in self.attempts)


def read_task(messages: Sequence[Message]) -> str:
    """Read the current step of a structured task, or else the task. Skill content and input are not instructions."""
    texts = _texts(messages[_get_start(messages)]) if messages else []
    step = texts[1].removeprefix(STEP_TITLE) if len(texts) > 1 and texts[1].startswith(STEP_TITLE) else ""
    return _strip_criteria(step) or (texts[0] if texts else "")


def _strip_criteria(step: str) -> str:
    """Remove the acceptance criteria from a step. The first step of a task may consist of nothing else."""
    for title in (SCHEMA_TITLE, DONE_TITLE):
        before, found, _ = f"\n\n{step}".rpartition(f"\n\n{title}")
        step = before.strip() if found else step
    return step


def read_progress(messages: Sequence[Message]) -> Progress:
    if not messages:
        return Progress()
    start = _get_start(messages)
    calls = list(_read_calls(messages[start + 1 :]))
    if not calls:
        return Progress()
    attempts = tuple(
        Attempt(step=call.step, call=call.script, ok=call.ok, text=call.text) for call in calls if call.script
    )
    fallback = _get_fallback(calls, messages[start])
    return Progress(
        turn=calls[-1].turn + 1,
        active_skill=fallback or _get_active_skill(calls),
        fallback=fallback,
        attempts=attempts,
        rejected=tuple((call.step, call.text) for call in calls if call.skill and not call.ok and call.is_alone),
        forgotten=calls[0].step - 1 if calls[0].turn > 1 else 0,
    )


class _Call(Struct, frozen=True, kw_only=True):
    """A call made by this provider, with its result."""

    turn: int
    step: int
    skill: str = ""
    """For `use_skill`."""
    script: ScriptCall | None = None
    ok: bool
    text: str
    is_alone: bool


def _get_start(messages: Sequence[Message]) -> int:
    # The task is the user's last message; everything after it belongs to the run.
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), 0)


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, TextPart)]


def _read_calls(messages: Sequence[Message]) -> Iterator[_Call]:
    results = {part.call_id: part for message in messages for part in message.parts if isinstance(part, ToolResultPart)}
    for message in messages:
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        for part in calls:
            match, result = _CALL_ID.fullmatch(part.id), results.get(part.id)
            if match and result:
                yield _Call(
                    turn=int(match.group(1)),
                    step=int(match.group(2)),
                    skill=str(part.arguments.get("skill", "")) if part.name == "use_skill" else "",
                    script=_read_script(part),
                    ok=not result.is_error,
                    text=result.text,
                    is_alone=len(calls) == 1,
                )


def _read_script(part: ToolCallPart) -> ScriptCall | None:
    skill, _, method = part.name.rpartition(".")
    if skill and part.name == name_capability(skill) and method:
        inputs = tuple((name, str(part.arguments[name])) for name in sorted(part.arguments))
        return ScriptCall(skill=skill, inputs=inputs)
    if part.name != "script_run":
        return None
    args = part.arguments.get("args")
    return ScriptCall(
        skill=str(part.arguments.get("skill_name", "")),
        script=str(part.arguments.get("script_name", "")),
        args=tuple(str(arg) for arg in args) if isinstance(args, list) else (),
    )


def _get_active_skill(calls: Sequence[_Call]) -> str:
    names = [call.script.skill if call.script else call.skill for call in calls if call.script or call.ok]
    return next((name for name in reversed(names) if name), "")


def _get_fallback(calls: Sequence[_Call], task: Message) -> str:
    """Return the fallback skill that the run loaded by itself after the last script failed."""
    scripts = [call for call in calls if call.turn == calls[-1].turn and call.script]
    if not scripts or scripts[-1].ok:
        return ""
    if any(call.skill and call.ok for call in calls if call.turn == calls[-1].turn):
        return ""
    asked = {
        canonical_name(call.script.skill if call.script else call.skill) for call in calls if call.script or call.ok
    }
    shown = [match.group(1) for text in _texts(task)[1:] if (match := _DISCLOSED.match(text))]
    return shown[-1] if shown and canonical_name(shown[-1]) not in asked else ""
