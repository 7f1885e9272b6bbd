"""Notes for events that are not steps: headings, warnings, details. Pure; `fold` calls it.

Each event type is folded into a field of the view, has a note here, or is listed in `UNSEEN`. Others get the text
of the log lines.
"""

from collections.abc import Callable
from typing import Any

from metier.events.model import (
    LlmDecisionDecoded,
    LlmDecisionRejected,
    LlmRetryScheduled,
    PromptBudgetComputed,
    PromptComposed,
    PromptLayerCut,
    StructuredOutputFallback,
)
from metier.events.payload import Payload
from metier.events.run import (
    GracefulShutdownStarted,
    LimitsRaised,
    LogRepaired,
    McpServerReported,
    ModelChanged,
    PinnedDefinitionUsed,
    ResultChecked,
    RunAdopted,
    RunReopened,
    RunResumed,
    RunStarted,
    SignalReceived,
)
from metier.events.skill import (
    EmbeddingsUnavailable,
    Handoff,
    SkillCatalogLoaded,
    SkillCodeAccepted,
    SkillDisclosureLoaded,
    SkillInvocationFinished,
    SkillInvocationStarted,
    SkillLoadFailed,
    SkillPrefilterCompleted,
    SkillProblemFound,
    SkillWithoutTools,
)
from metier.events.step import (
    ArtifactWritten,
    HooksRan,
    PlanUpdated,
    StepOutcomeAnswered,
    StepRetryScheduled,
    UserMessageAdded,
)
from metier.events.task import TaskPlanned, TaskStepChanged
from metier.telemetry.amounts import format_count
from metier.telemetry.console import WORDINGS
from metier.telemetry.sanitize import sanitize_line
from metier.views.run_view import NoteLevel, NoteView, RunView

type Words = tuple[NoteLevel, Callable[[Any], str]]
"""Level and text of a note. The function takes the payload type under which it is listed."""


def build_note(payload: Payload, view: RunView) -> NoteView | None:
    """Build the note of an event; None if it has none."""
    words = NOTES.get(type(payload))
    level, said = (words[0], words[1](payload)) if words is not None else _read_wording(payload)
    # A note is one line; a message from outside must not add lines that look like other notes.
    text = " ".join(said.split())
    return NoteView(turn=view.turn, level=level, text=sanitize_line(text)) if text else None


def _read_wording(payload: Payload) -> tuple[NoteLevel, str]:
    wording = WORDINGS.get(payload.event_type)
    if wording is None or type(payload) in UNSEEN:
        return "detail", ""
    level: NoteLevel = wording.level if wording.level in ("warning", "error") else "detail"
    return level, f"{wording.status} {wording.detail}".format(p=payload)


def _describe_mcp(payload: McpServerReported) -> str:
    if payload.state == "unusable":
        return f"{payload.server}: {payload.message}"
    words = {"not_accepted": "is left out", "started": "started", "ended": "ended", "changed": "changed"}
    return f"server {payload.server} {words[payload.state]}: {payload.message}"


def _describe_prefilter(payload: SkillPrefilterCompleted) -> str:
    names = ", ".join(candidate.skill_name for candidate in payload.candidates[:5])
    return f"{format_count(payload.considered, 'skill')} ranked{f': {names}' if names else ''}"


def _describe_disclosure(payload: SkillDisclosureLoaded) -> str:
    names = ", ".join(file.path for file in payload.files[:4])
    size = f"stage {payload.stage}, {format_count(payload.total_tokens, 'token')}"
    return f"{payload.skill_name or 'catalog'}: {size}{f' ({names})' if names else ''}"


def _describe_raised(payload: LimitsRaised) -> str:
    raised = {
        "turns": payload.max_turns,
        "cost": f"${payload.max_cost_usd:g}" if payload.max_cost_usd is not None else None,
        "time": f"{payload.timeout_seconds:g} s" if payload.timeout_seconds is not None else None,
    }
    changes = ", ".join(f"{name} {value}" for name, value in raised.items() if value is not None)
    return f"limits raised: {changes}" if changes else ""


def _describe_step_of_task(payload: TaskStepChanged) -> str:
    if payload.state in ("pending", "succeeded"):
        return ""
    name = payload.name or payload.file
    return f"{name}: {payload.state}{f', {payload.message}' if payload.message else ''}"


def _describe_fallback(payload: StructuredOutputFallback) -> str:
    lack = "tool calls" if payload.lacks == "tools" else "a response schema"
    return f"{payload.provider}/{payload.model} does not support {lack}: decisions are asked for as JSON"


def _describe_signal(payload: SignalReceived) -> str:
    return (
        f"{payload.signal} received, stopping; a second one stops at once"
        if payload.count == 1
        else f"{payload.signal} again"
    )


def _describe_skill_problem(payload: SkillLoadFailed | SkillProblemFound) -> str:
    place = f"{payload.path}:{payload.line}" if payload.line else payload.path
    text = f"{payload.reason} ({place})" if place else payload.reason
    hint = payload.hint if isinstance(payload, SkillProblemFound) else ""
    return f"{text}. {hint}" if hint else text


def _describe_hooks(payload: HooksRan) -> str:
    return f"hook {payload.hook_event}: {payload.summary}" if payload.summary else ""


def _describe_resumed(payload: RunResumed) -> str:
    """Leave out decided steps and ended child runs, which are shown themselves."""
    # By its words, because the event has the reason only as a sentence.
    is_shown = payload.reason.startswith(("Approval ", "Approvals ", "Run child-"))
    return "" if is_shown else f"resumed: {payload.reason}"


def _describe_start(payload: RunStarted) -> str:
    # Only a live run that a user started can surprise that user by what it does unasked.
    is_bold = payload.profile == "permissive" and payload.mode == "live" and not payload.parent_run_id
    return "permissions: auto-approve" if is_bold and payload.provider != "offline" else ""


NOTES: dict[type[Payload], Words] = {
    RunStarted: ("detail", _describe_start),
    UserMessageAdded: ("user", lambda p: " ".join(p.text.split())),
    HooksRan: ("warning", _describe_hooks),
    SkillInvocationStarted: ("heading", lambda p: f"{p.skill_name}  {p.rationale}"),
    SkillLoadFailed: ("warning", _describe_skill_problem),
    SkillProblemFound: ("warning", _describe_skill_problem),
    PromptLayerCut: (
        "warning",
        lambda p: (
            f"{p.source} is too long for its layer: {format_count(p.left_out_characters, 'character')} are left out"
        ),
    ),
    PinnedDefinitionUsed: (
        "warning",
        lambda p: f"{p.definition} changed; the run uses its pinned version",
    ),
    McpServerReported: ("warning", _describe_mcp),
    StructuredOutputFallback: ("warning", _describe_fallback),
    LlmRetryScheduled: (
        "warning",
        lambda p: (
            f"{p.meta.provider}/{p.meta.model}: {p.reason.replace('_', ' ')}; retrying in {p.delay_seconds:.1f} s"
        ),
    ),
    LlmDecisionRejected: (
        "warning",
        lambda p: f"the reply could not be used{' and is asked for again' if p.repair else ''}: {p.message}",
    ),
    StepRetryScheduled: ("warning", lambda p: f"step {p.step_id} is tried again: {p.reason}"),
    RunResumed: ("info", _describe_resumed),
    RunReopened: ("info", lambda p: f"reopened: {p.reason}"),
    LimitsRaised: ("info", _describe_raised),
    SignalReceived: ("warning", _describe_signal),
    LogRepaired: ("warning", lambda p: f"the event log was repaired: {format_count(p.dropped_bytes, 'byte')} dropped"),
    ArtifactWritten: ("detail", lambda p: f"wrote {p.path} ({format_count(p.bytes, 'byte')})"),
    PlanUpdated: ("plan", lambda p: f"plan: {p.summary}"),
    Handoff: ("detail", lambda p: f"{p.from_skill} hands over to {p.to_skill}: {p.rationale}"),
    SkillCatalogLoaded: (
        "detail",
        lambda p: (
            f"{format_count(p.skills, 'skill')} in the catalog{f', {p.problems} with problems' if p.problems else ''}"
        ),
    ),
    EmbeddingsUnavailable: ("warning", lambda p: f"skills are ranked by words only: {p.reason}"),
    SkillPrefilterCompleted: ("detail", _describe_prefilter),
    SkillDisclosureLoaded: ("detail", _describe_disclosure),
    PromptBudgetComputed: (
        "detail",
        lambda p: f"{p.allocated_prompt_tokens:,} of {p.max_context_tokens:,} tokens used, counted by {p.counted_by}",
    ),
    GracefulShutdownStarted: ("detail", lambda p: f"stopping, up to {p.grace_seconds:g} s"),
    RunAdopted: (
        "warning",
        lambda p: (
            "the run was not started here; it continues with the settings, rules and keys of this host "
            f"({p.profile}, {p.provider}/{p.model}), and asks for approval of each step that was already planned"
        ),
    ),
    ModelChanged: (
        "info",
        lambda p: f"the run continues with {p.provider}/{p.model}; changed settings: {', '.join(p.settings)}",
    ),
    SkillCodeAccepted: ("warning", lambda p: f"skills changed; the run uses the new files: {', '.join(p.skills)}"),
    StepOutcomeAnswered: (
        "info",
        lambda p: f"step {p.step_id}: {p.answered_by or 'a user'} answered {p.answer!r}",
    ),
    SkillWithoutTools: ("warning", lambda p: p.message),
    TaskPlanned: ("info", lambda p: f"task {p.task_id}: {format_count(len(p.steps), 'step')}"),
    TaskStepChanged: ("detail", _describe_step_of_task),
    ResultChecked: (
        "warning",
        lambda p: "" if p.accepted else f"the result was not accepted: {'; '.join(p.failures)}",
    ),
}
"""The note of each event type. An empty text makes no note."""

UNSEEN: frozenset[type[Payload]] = frozenset({PromptComposed, LlmDecisionDecoded, SkillInvocationFinished})
"""Events without a note, because other events show the same."""
