"""What a view notes of events that are no step: headings, warnings, details. Pure; `fold` calls it.

Every type of event is folded into a field of the view, or noted here, or named in `UNSEEN`. Another one is
noted as the event lines word it.
"""

from collections.abc import Callable
from typing import Any

from metier import events as ev
from metier import task_events as tv
from metier.hook_events import HooksRan
from metier.routing_events import EmbeddingsUnavailable
from metier.telemetry.console import WORDINGS
from metier.telemetry.sanitize import sanitize_line
from metier.views.run_view import NoteLevel, NoteView, RunView

type Words = tuple[NoteLevel, Callable[[Any], str]]
"""Takes a payload of the type under which it is listed."""


def build_note(payload: ev.Payload, view: RunView) -> NoteView | None:
    """The note of an event that is not folded, or has one besides; None where it has none."""
    words = NOTES.get(type(payload))
    level, said = (words[0], words[1](payload)) if words is not None else _read_wording(payload)
    text = " ".join(said.split())
    return NoteView(turn=view.turn, level=level, text=sanitize_line(text)) if text else None


def _read_wording(payload: ev.Payload) -> tuple[NoteLevel, str]:
    wording = WORDINGS.get(payload.event_type)
    if wording is None or type(payload) in UNSEEN:
        return "detail", ""
    level: NoteLevel = wording.level if wording.level in ("warning", "error") else "detail"
    return level, f"{wording.status} {wording.detail}".format(p=payload)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def _describe_mcp(payload: ev.McpServerReported) -> str:
    words = {"not_accepted": "is left out", "started": "started", "ended": "ended", "changed": "changed"}
    return f"server {payload.server} {words[payload.state]}: {payload.message}"


def _describe_prefilter(payload: ev.SkillPrefilterCompleted) -> str:
    names = ", ".join(candidate.skill_name for candidate in payload.candidates[:5])
    return f"{_count(payload.considered, 'skill')} ranked{f': {names}' if names else ''}"


def _describe_disclosure(payload: ev.SkillDisclosureLoaded) -> str:
    names = ", ".join(file.path for file in payload.files[:4])
    size = f"stage {payload.stage}, {_count(payload.total_tokens, 'token')}"
    return f"{payload.skill_name or 'catalog'}: {size}{f' ({names})' if names else ''}"


def _describe_raised(payload: ev.LimitsRaised) -> str:
    raised = {
        "turns": payload.max_turns,
        "cost": f"${payload.max_cost_usd:g}" if payload.max_cost_usd is not None else None,
        "time": f"{payload.timeout_seconds:g} s" if payload.timeout_seconds is not None else None,
    }
    told = ", ".join(f"{name} {value}" for name, value in raised.items() if value is not None)
    return f"limits raised: {told}" if told else ""


def _describe_step_of_task(payload: tv.TaskStepChanged) -> str:
    if payload.state in ("pending", "succeeded"):
        return ""
    name = payload.name or payload.file
    return f"{name}: {payload.state}{f', {payload.message}' if payload.message else ''}"


def _describe_fallback(payload: ev.StructuredOutputFallback) -> str:
    lack = "tool calls" if payload.lacks == "tools" else "a response schema"
    return f"{payload.provider}/{payload.model} does not support {lack}: decisions are asked for as JSON"


def _describe_signal(payload: ev.SignalReceived) -> str:
    return f"{payload.signal} received; once more ends it at once" if payload.count == 1 else f"{payload.signal} again"


def _describe_skill_problem(payload: ev.SkillLoadFailed | ev.SkillProblemFound) -> str:
    place = f"{payload.path}:{payload.line}" if payload.line else payload.path
    text = f"{payload.reason} ({place})" if place else payload.reason
    hint = payload.hint if isinstance(payload, ev.SkillProblemFound) else ""
    return f"{text}. {hint}" if hint else text


def _describe_hooks(payload: HooksRan) -> str:
    return f"hook {payload.hook_event}: {payload.summary}" if payload.summary else ""


def _describe_resumed(payload: ev.RunResumed) -> str:
    """The step that was decided about shows what became of it."""
    return "" if payload.reason.startswith(("Approval ", "Approvals ")) else f"resumed: {payload.reason}"


def _describe_start(payload: ev.RunStarted) -> str:
    is_bold = payload.profile == "permissive" and payload.mode == "live" and not payload.parent_run_id
    return "permissions: auto-approve" if is_bold and payload.provider != "offline" else ""


NOTES: dict[type[ev.Payload], Words] = {
    ev.RunStarted: ("detail", _describe_start),
    HooksRan: ("warning", _describe_hooks),
    ev.SkillInvocationStarted: ("heading", lambda p: f"{p.skill_name}  {p.rationale}"),
    ev.SkillLoadFailed: ("warning", _describe_skill_problem),
    ev.SkillProblemFound: ("warning", _describe_skill_problem),
    ev.PromptLayerCut: (
        "warning",
        lambda p: f"{p.source} is too long for its layer: {_count(p.left_out_characters, 'character')} are left out",
    ),
    ev.PinnedDefinitionUsed: ("warning", lambda p: f"{p.definition} changed; the run uses what it began with"),
    ev.McpServerReported: ("warning", _describe_mcp),
    ev.StructuredOutputFallback: ("warning", _describe_fallback),
    ev.LlmRetryScheduled: (
        "warning",
        lambda p: f"{p.meta.provider}/{p.meta.model}: {p.reason}; trying again in {p.delay_seconds:.1f} s",
    ),
    ev.LlmDecisionRejected: (
        "warning",
        lambda p: f"the reply could not be used{' and is asked for again' if p.repair else ''}: {p.message}",
    ),
    ev.StepRetryScheduled: ("warning", lambda p: f"step {p.step_id} is tried again: {p.reason}"),
    ev.RunResumed: ("info", _describe_resumed),
    ev.RunReopened: ("info", lambda p: f"reopened: {p.reason}"),
    ev.LimitsRaised: ("info", _describe_raised),
    ev.SignalReceived: ("warning", _describe_signal),
    ev.LogRepaired: ("warning", lambda p: f"the event log was repaired: {_count(p.dropped_bytes, 'byte')} dropped"),
    ev.ArtifactWritten: ("detail", lambda p: f"wrote {p.path} ({_count(p.bytes, 'byte')})"),
    ev.PlanUpdated: ("info", lambda p: f"plan: {p.summary}"),
    ev.Handoff: ("detail", lambda p: f"{p.from_skill} hands over to {p.to_skill}: {p.rationale}"),
    ev.SkillCatalogLoaded: (
        "detail",
        lambda p: f"{_count(p.skills, 'skill')} in the catalog{f', {p.problems} with problems' if p.problems else ''}",
    ),
    EmbeddingsUnavailable: ("warning", lambda p: f"skills are ranked by words alone: {p.reason}"),
    ev.SkillPrefilterCompleted: ("detail", _describe_prefilter),
    ev.SkillDisclosureLoaded: ("detail", _describe_disclosure),
    ev.PromptBudgetComputed: (
        "detail",
        lambda p: f"{p.allocated_prompt_tokens:,} of {p.max_context_tokens:,} tokens used, counted by {p.counted_by}",
    ),
    ev.GracefulShutdownStarted: ("detail", lambda p: f"stopping, up to {p.grace_seconds:g} s"),
    tv.RunAdopted: (
        "warning",
        lambda p: (
            "the run was not started here: it goes on with the settings, rules and keys of this host "
            f"({p.profile}, {p.provider}/{p.model}), and asks about every step that was planned before"
        ),
    ),
    tv.ModelChanged: (
        "info",
        lambda p: f"the run continues with {p.provider}/{p.model}; changed settings: {', '.join(p.settings)}",
    ),
    tv.SkillCodeAccepted: ("warning", lambda p: f"skills changed; the run uses the new files: {', '.join(p.skills)}"),
    tv.StepOutcomeAnswered: (
        "info",
        lambda p: f"step {p.step_id}: {p.answered_by or 'a person'} answered {p.answer!r}",
    ),
    tv.SkillWithoutTools: ("warning", lambda p: p.message),
    tv.TaskPlanned: ("info", lambda p: f"task {p.task_id}: {_count(len(p.steps), 'step')}"),
    tv.TaskStepChanged: ("detail", _describe_step_of_task),
    tv.ResultChecked: (
        "warning",
        lambda p: "" if p.accepted else f"the result was not accepted: {'; '.join(p.failures)}",
    ),
}
"""How an event reads; an empty sentence is not noted."""

UNSEEN: frozenset[type[ev.Payload]] = frozenset({ev.PromptComposed, ev.LlmDecisionDecoded, ev.SkillInvocationFinished})
"""What a user learns from other events: the steps that a decision led to, the next heading."""
