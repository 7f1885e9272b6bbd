"""What a hook answered: its exit code and what it printed, understood by the convention of hooks. Pure.

A hook can narrow and nothing else: deny, ask, stop, change a call, add text. An `allow` changes nothing.
"""

import json
from collections.abc import Mapping
from typing import Literal, cast

from pydantic import Field, JsonValue

from metier.messages import Value
from metier.tools.hooks.definition import HookEvent

BLOCKED = 2
"""The exit code that says no; stderr says why."""
MOST_CHARACTERS = 10_000
"""Of a reason or of text for the model."""
PLAIN_TEXT_EVENTS: frozenset[HookEvent] = frozenset({"SessionStart", "UserPromptSubmit"})
"""What a hook of these prints is for the model, also where it is not JSON."""

type HookDecision = Literal["", "ask", "deny", "stop"]
type HookStatus = Literal["ok", "failed", "timeout", "not_started", "too_much_output", "changed"]

_DENIALS = frozenset({"deny", "block"})


class HookAnswer(Value):
    """What one hook said."""

    decision: HookDecision = ""
    """`deny` is a no to what the event is about, `stop` ends the run."""
    reason: str = ""
    context: str = ""
    """For the model."""
    message: str = ""
    """For the user."""
    updated_input: dict[str, JsonValue] | None = None
    """The arguments that the call shall have instead."""
    ignored: str = ""
    """What it wanted and cannot have."""
    problem: str = Field(default="", exclude=True)
    """Why its output could not be read."""


def read_answer(event: HookEvent, *, exit_code: int, stdout: str, stderr: str) -> HookAnswer:
    """Of a hook that ended with 0 or with 2; another code is a failure and no answer."""
    if exit_code == BLOCKED:
        return HookAnswer(decision="deny", reason=_cut(stderr.strip() or "A hook said no"))
    text = stdout.strip()
    if not text.startswith("{"):
        return HookAnswer(context=_cut(text)) if event in PLAIN_TEXT_EVENTS else HookAnswer()
    try:
        said: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        return HookAnswer(problem=f"It printed what begins like JSON and is none: {error}")
    return _read_object(said) if isinstance(said, dict) else HookAnswer()


def _read_object(said: dict[str, JsonValue]) -> HookAnswer:
    specific = said.get("hookSpecificOutput")
    own: Mapping[str, JsonValue] = specific if isinstance(specific, dict) else {}
    behavior = own.get("decision")
    inner: Mapping[str, JsonValue] = behavior if isinstance(behavior, dict) else {}
    words = {
        str(word).lower()
        for word in (said.get("decision"), own.get("permissionDecision"), inner.get("behavior"))
        if isinstance(word, str)
    }
    reason = _first_text(
        own.get("permissionDecisionReason"), inner.get("message"), said.get("reason"), own.get("reason")
    )
    updated = own.get("updatedInput", inner.get("updatedInput", said.get("updatedInput")))
    decision: HookDecision = "deny" if words & _DENIALS else "ask" if "ask" in words else ""
    if said.get("continue") is False:
        decision, reason = "stop", _first_text(said.get("stopReason"), reason) or "A hook stopped the run"
    return HookAnswer(
        decision=decision,
        reason=_cut(reason or ("A hook said no" if decision == "deny" else "")),
        context=_cut(_first_text(own.get("additionalContext"), said.get("additionalContext"))),
        message=_cut(_first_text(said.get("systemMessage"))),
        updated_input=cast("dict[str, JsonValue]", updated) if isinstance(updated, dict) else None,
        ignored="a hook cannot allow" if words & {"allow", "approve"} else "",
    )


def _first_text(*values: JsonValue) -> str:
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
