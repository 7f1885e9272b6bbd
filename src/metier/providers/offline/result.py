"""The offline provider's final text: the result of each step, and the reason for each step not done. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Literal, cast

from msgspec import Struct
from pydantic import JsonValue

from metier.decisions import describe_failure, find_summary, read_failure, read_success
from metier.messages import Shortfall
from metier.providers.offline.plan import Plan, Step
from metier.providers.offline.progress import Attempt, Progress
from metier.providers.offline.request import READ_CHARACTERS
from metier.providers.registry import Registration
from metier.telemetry.excerpt import one_line

SUMMARY_CHARACTERS = 2_000
REASON_CHARACTERS = 300
QUOTED_CHARACTERS = 80
FILES_SHOWN = 20
NO_SKILL = "no_skill"
_STATUSES: dict[str, Literal["failed", "timeout", "blocked", "escalated"]] = {
    "timeout": "timeout",
    "blocked": "blocked",
    "escalated": "escalated",
}

_SUMMARY_AT_START = re.compile(r'\{"success":\s*true,\s*"result":\s*\{"summary":\s*(?=")')


class Produced(Struct, frozen=True):
    """A script's own report."""

    summary: str
    files: tuple[str, ...] = ()


class Ending(Struct, frozen=True, kw_only=True):
    """The parts of the result that don't come from the steps."""

    blocked: str
    """The reason that steps were not tried."""
    covered: frozenset[int] = frozenset()
    """Steps whose exact call was already made for another step."""
    hint: str = ""
    reason: str = "max_turns_exceeded"
    """The code of `blocked`."""


def render_result(plan: Plan, progress: Progress, ending: Ending) -> str:
    alone = len(plan.steps) == 1
    done = [line for step in plan.steps if (line := _render_done(step, progress, ending, alone=alone))]
    undone = [line for step in plan.steps if (line := _render_undone(step, progress, ending))]
    if plan.omitted:
        undone.append(f"- {plan.omitted} more parts: a request can have at most {len(plan.steps)}")
    if plan.is_truncated:
        undone.append(f"- the text after the first {READ_CHARACTERS} characters of the request: it was not read")
    if not plan.steps:
        undone.append("- the request: it contains no task")
    lines = done or ["Nothing was done."]
    if undone:
        lines = [*lines, "", "Not done:", *undone]
    if any(step.problem for step in plan.steps):
        lines = [*lines, "", f"No model was used. {ending.hint}"]
    return "\n".join(lines)


def render_hint(registrations: Mapping[str, Registration]) -> str:
    """Tell the user how to configure a model."""
    choices = [f"{name} with {found.keys[0]}" for name, found in sorted(registrations.items()) if found.keys]
    return (
        "To use a model, set AGENT_MODEL_PROVIDER and the provider's key: "
        f"{', '.join(choices)}; for your own server, set AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL."
    )


def render_without_skills(hint: str) -> str:
    return (
        "Nothing was done: no model was used and no skill is active, and the offline provider can only use skills. "
        "Run `agent init` to create a workspace with skills, or `agent skills` to see how to activate others. "
        f"{hint}"
    )


def is_settled(step: Step, progress: Progress) -> bool:
    """Return True if nothing more will be tried for this step."""
    return bool(
        step.problem
        or step.number <= progress.forgotten
        or progress.list_attempts(step.number)
        or any(number == step.number for number, _ in progress.rejected)
    )


def read_produced(text: str) -> Produced:
    """Read the summary and the files of a script's answer, or the first characters of other text."""
    success = read_success(text)
    if success is None:
        return Produced(one_line(_read_truncated_summary(text) or text, SUMMARY_CHARACTERS))
    result, summary = success.get("result"), find_summary(success)
    if summary is None:
        summary = json.dumps(result, ensure_ascii=False)
    files = result.get("artifacts") if isinstance(result, dict) else None
    named = [str(file) for file in files] if isinstance(files, list) else []
    return Produced(one_line(summary, SUMMARY_CHARACTERS), tuple(named[:FILES_SHOWN]))


def _render_done(step: Step, progress: Progress, ending: Ending, *, alone: bool) -> str:
    mark = "" if alone else f"{step.number}. "
    if step.number in ending.covered and step.skill:
        return f"{mark}{_quote(step)}: the same call of {step.skill.name} as above"
    attempts = progress.list_attempts(step.number)
    if step.number <= progress.forgotten and not step.problem and not attempts:
        return f"{mark}{_quote(step)}: tried in an earlier turn; see the run log for its result"
    good = next((attempt for attempt in attempts if attempt.ok), None)
    if good is None:
        return ""
    failed = "".join(f"{each.call.skill} failed ({_describe(each)}); " for each in attempts if not each.ok)
    return _render_attempt(good, f"{mark}{failed}{good.call.skill}")


def _render_attempt(attempt: Attempt, lead: str) -> str:
    produced = read_produced(attempt.text)
    lines = [f"{lead}: {produced.summary}"]
    lines += [f"   - {file}" for file in produced.files if file not in produced.summary]
    return "\n".join(lines)


def _render_undone(step: Step, progress: Progress, ending: Ending) -> str:
    if step.problem:
        return f"- {_quote(step)}: {step.problem}"
    attempts = progress.list_attempts(step.number)
    if step.number <= progress.forgotten or step.number in ending.covered or any(a.ok for a in attempts):
        return ""
    if attempts:
        tried = "; ".join(f"{attempt.call.skill} failed: {_describe(attempt)}" for attempt in attempts)
        return f"- {_quote(step)}: {tried}"
    reason = next((text for number, text in progress.rejected if number == step.number), "")
    return f"- {_quote(step)}: {one_line(reason, REASON_CHARACTERS) if reason else ending.blocked}"


def _describe(attempt: Attempt) -> str:
    return one_line(describe_failure(attempt.text), REASON_CHARACTERS).rstrip(".") or "it gave no reason"


def find_shortfall(plan: Plan, progress: Progress, ending: Ending) -> Shortfall | None:
    """Return the shortfall of the first part that was not done, or None if all were."""
    if not plan.steps:
        return Shortfall(reason=NO_SKILL, message="The request contains no task")
    undone = [step for step in plan.steps if _render_undone(step, progress, ending)]
    if undone:
        return _build_shortfall(undone[0], progress, ending)
    if plan.omitted or plan.is_truncated:
        return Shortfall(reason="request_too_long", message="Part of the request was not read or not done")
    return None


def _build_shortfall(step: Step, progress: Progress, ending: Ending) -> Shortfall:
    if step.problem:
        return Shortfall(reason=NO_SKILL, message=f"{_quote(step)} was not done: {step.problem}")
    attempts = progress.list_attempts(step.number)
    if not attempts:
        rejected = any(number == step.number for number, _ in progress.rejected)
        reason = "step_failed" if rejected else ending.reason
        status = "escalated" if reason == "max_turns_exceeded" else "failed"
        return Shortfall(
            status=status, reason=reason, message=_render_undone(step, progress, ending).removeprefix("- ")
        )
    last = attempts[-1]
    failure = read_failure(last.text) or {}
    word = str(failure.get("state") or failure.get("error") or "")
    status = _STATUSES.get(word, "failed")
    reason = "step_failed" if status == "failed" else f"skill_{status}"
    return Shortfall(status=status, reason=reason, message=f"Skill {last.call.skill!r} failed: {_describe(last)}")


def _quote(step: Step) -> str:
    return f'"{one_line(step.text, QUOTED_CHARACTERS)}"'


def _read_truncated_summary(text: str) -> str:
    # A truncated answer lacks its middle, so it isn't valid JSON; the summary is at the start.
    match = _SUMMARY_AT_START.match(text)
    if match is None:
        return ""
    try:
        value = cast("JsonValue", json.JSONDecoder().raw_decode(text, match.end())[0])  # JSON has no other values
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
