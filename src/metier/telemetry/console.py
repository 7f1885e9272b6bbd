"""The console log: one line per event on stderr with time, trace, turn, skill, action, status and detail.

On a terminal, lines are colored and, except for warnings, truncated to its width. Narrow terminals get neither time nor
columns. Elsewhere, and with `NO_COLOR`, lines are plain text.
"""

import os
import string
from typing import NamedTuple, TextIO, cast, override

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from metier.events.payload import Payload
from metier.events.record import EventRecord
from metier.events.skill import SkillInvocationStarted
from metier.telemetry.amounts import format_cost
from metier.telemetry.options import LogLevel
from metier.telemetry.sanitize import sanitize_line


class Wording(NamedTuple):
    """The level and the text of one event type. `{p.field}` is a field of its payload."""

    level: LogLevel
    status: str
    detail: str


WORDINGS: dict[str, Wording] = {
    "run_started": Wording("info", "{p.mode}", "{p.task}"),
    "skill_catalog_loaded": Wording("debug", "{p.skills} skills", "{p.problems} problems"),
    "skill_load_failed": Wording("warning", "failed", "{p.skill_name} ({p.path}): {p.reason}"),
    "skill_problem_found": Wording("warning", "problem", "{p.reason}"),
    "prompt_layer_cut": Wording("warning", "truncated", "{p.source}: {p.left_out_characters} characters omitted"),
    "undo_started": Wording("info", "undo", "{p.undo_id}: {p.files}"),
    "undo_finished": Wording("info", "undone", "{p.undo_id}: {p.files} files; skipped: {p.left_alone}"),
    "hooks_ran": Wording("info", "{p.hook_event}", "{p.summary}"),
    "project_instructions_loaded": Wording("info", "loaded", "{p.summary}"),
    "run_adopted": Wording(
        "warning",
        "adopted",
        "the run was started elsewhere: it continues with the settings, rules and keys of this host ({p.profile}, "
        "{p.provider}/{p.model}) and asks before every step that was already planned",
    ),
    "pinned_definition_used": Wording(
        "warning", "changed", "{p.definition}: the run continues with its original version"
    ),
    "skill_code_accepted": Wording("warning", "changed", "{p.skills}: the run continues with the new files"),
    "model_changed": Wording("info", "changed", "{p.provider}/{p.model}: {p.settings}"),
    "step_outcome_unknown": Wording("warning", "unknown", "{p.known}"),
    "step_outcome_answered": Wording("info", "{p.answer}", "by {p.answered_by}"),
    "skill_without_tools": Wording("warning", "no tools", "{p.message}"),
    "mcp_server_reported": Wording("warning", "{p.state}", "{p.server}: {p.message}"),
    "embeddings_unavailable": Wording("warning", "no vectors", "skills are only ranked by words: {p.reason}"),
    "skill_prefilter_completed": Wording("debug", "{p.considered} ranked", "{p.query}"),
    "skill_disclosure_loaded": Wording("info", "stage {p.stage}", "{p.total_bytes} bytes, {p.total_tokens} tokens"),
    "prompt_budget_computed": Wording(
        "debug", "{p.allocated_prompt_tokens} tokens", "of {p.max_context_tokens}, counted by {p.counted_by}"
    ),
    "prompt_composed": Wording("debug", "{p.messages} messages", "{p.bytes} bytes, {p.tools} tools"),
    "llm_request_sent": Wording("info", "sent", "{p.meta.provider}/{p.meta.model} attempt {p.meta.attempt}"),
    "llm_retry_scheduled": Wording("warning", "retry", "in {p.delay_seconds:g} s: {p.reason}"),
    "llm_response_received": Wording("info", "{p.stop_reason}", "{p.text_summary}"),
    "llm_request_failed": Wording("error", "failed", "{p.reason}: {p.message}"),
    "llm_decision_decoded": Wording("info", "{p.path}", "{p.reasoning_summary}"),
    "llm_decision_rejected": Wording("warning", "rejected", "{p.message}"),
    "call_refused": Wording("warning", "{p.status}", "{p.action} {p.tool}: {p.reason}"),
    "skill_invocation_started": Wording("info", "started", "{p.rationale}"),
    "step_started": Wording("info", "started", "{p.action} {p.tool}"),
    "skill_step_executed": Wording("info", "{p.status}", "{p.action} {p.tool} {p.stdout_summary}"),
    "step_retry_scheduled": Wording("warning", "retry", "{p.reason}"),
    "skill_invocation_finished": Wording("info", "{p.status}", "{p.summary}"),
    "handoff": Wording("info", "handed over", "{p.from_skill} to {p.to_skill}: {p.rationale}"),
    "artifact_written": Wording("info", "written", "{p.path} ({p.bytes} bytes)"),
    "approval_requested": Wording("warning", "waiting", "{p.tool} {p.justification} [{p.approval_id}]"),
    "approval_decided": Wording("info", "{p.decision}", "{p.approval_id} {p.decided_by} {p.reason}"),
    "input_requested": Wording("warning", "waiting", "{p.question}"),
    "user_message_added": Wording("info", "message", "{p.text}"),
    "input_received": Wording("info", "answered", "{p.request_id} {p.answered_by}"),
    "run_paused": Wording("warning", "paused", "{p.kind}: {p.reason} {p.resume_with}"),
    "limits_raised": Wording("info", "raised", "by {p.raised_by}"),
    "run_reopened": Wording("info", "reopened", "{p.reason}"),
    "run_resumed": Wording("info", "resumed", "{p.reason}"),
    "signal_received": Wording("warning", "{p.signal}", "signal {p.count}"),
    "graceful_shutdown_started": Wording("warning", "stopping", "{p.children} children, {p.grace_seconds:g} s"),
    "plan_updated": Wording("info", "plan", "{p.summary}"),
    "structured_output_fallback": Wording("warning", "no {p.lacks}", "{p.message}"),
    "task_planned": Wording("info", "planned", "{p.task_id}: {p.steps}"),
    "task_step_changed": Wording("info", "{p.state}", "{p.file} {p.name} {p.message}"),
    "child_run_started": Wording("info", "started", "{p.agent} {p.child_run_id}: {p.task}"),
    "child_run_finished": Wording("info", "{p.status}", "{p.child_run_id}, {p.turns:turns}, {p.cost_usd:usd}"),
    "result_checked": Wording("info", "accepted={p.accepted}", "{p.failures}"),
    "run_finished": Wording("info", "{p.status}", "{p.result_summary}"),
    "run_failed": Wording("error", "{p.status}", "{p.reason}: {p.message}"),
    "log_repaired": Wording("warning", "repaired", "{p.dropped_bytes} bytes dropped after event {p.last_good_seq}"),
}
_UNKNOWN = Wording("info", "", "")
_LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")
_BAD = frozenset({"failed", "timeout", "denied", "in_doubt", "blocked", "expired", "canceled"})
_STYLES: dict[LogLevel, str] = {"debug": "dim", "info": "green", "warning": "yellow", "error": "bold red"}
_MAX_DETAIL = 400
_WIDE = 120
"""Minimum terminal width for aligned columns."""
_MAX_LINES = 3
_MAX_STDERR_LINE = 120


class _Words(string.Formatter):
    """Formats values for readers: lists with commas, nothing for None."""

    @override
    def format_field(self, value: object, format_spec: str) -> str:
        match value, format_spec:
            case None | float() | int(), "usd":
                return format_cost(value)
            case int(), "turns":
                return "1 turn" if value == 1 else f"{value} turns"
            case None, _:
                return ""
            case tuple(), _:
                return ", ".join(str(part) for part in cast("tuple[object, ...]", value))
            case _:
                return format(value, format_spec)


_WORDS = _Words()


class Line(NamedTuple):
    """The parts of a line, all sanitized."""

    time: str
    trace: str
    turn: str
    skill: str
    action: str
    status: str
    detail: str
    level: LogLevel


class ConsoleSink:
    """Writes one line per event of at least the given level to a stream."""

    def __init__(self, stream: TextIO, *, level: LogLevel = "info") -> None:
        self._stream = stream
        self._least = _LEVELS.index(level)
        self._followed: dict[str, tuple[int, str]] = {}
        """Turn and skill by run: several runs share a stream, and records of older logs lack these fields."""
        self._console = _build_console(stream)

    def write(self, record: EventRecord) -> None:
        turn, skill = self._follow(record)
        line = render_line(record, turn=turn, skill=skill)
        if _LEVELS.index(line.level) < self._least:
            return
        if self._console is None:
            self._stream.write(render_plain(line) + "\n")
            self._stream.flush()
        else:
            text = render_rich(line, is_wide=self._console.width >= _WIDE)
            # Warnings are never truncated: the terminal wraps them.
            is_grave = line.level in ("warning", "error")
            overflow = "ignore" if is_grave else "ellipsis"
            self._console.print(text, no_wrap=True, overflow=overflow, crop=not is_grave)

    def close(self) -> None:
        self._stream.flush()

    def _follow(self, record: EventRecord) -> tuple[int, str]:
        """Return the turn and the skill of a record, or else the last ones of its run."""
        payload, (turn, skill) = record.payload, self._followed.get(record.run_id, (0, ""))
        own: object = getattr(payload, "turn", None)
        turn = record.turn or (own if isinstance(own, int) and own else turn)
        chosen: object = getattr(payload, "selected_skill", None)
        if isinstance(payload, SkillInvocationStarted):
            chosen = payload.skill_name
        skill = record.skill or (chosen if isinstance(chosen, str) and chosen else skill)
        self._followed[record.run_id] = (turn, skill)
        # A step may run code of a skill that isn't the active one; then its line shows that skill.
        named: object = getattr(payload, "skill_name", None)
        return turn, named if isinstance(named, str) and named else skill


def render_line(record: EventRecord, *, turn: int, skill: str) -> Line:
    """Render the parts of a line, sanitized."""
    wording = WORDINGS.get(record.event_type, _UNKNOWN)
    status = sanitize_line(wording.status.format(p=record.payload))
    return Line(
        time=f"{record.timestamp:%H:%M:%S}",
        trace=sanitize_line(record.trace_id[:8]),
        turn=str(turn),
        skill=sanitize_line(skill) or "-",
        action=sanitize_line(record.event_type),
        status=status,
        detail=sanitize_line(_build_detail(wording, record.payload)[:_MAX_DETAIL]),
        level="error" if status in _BAD and wording.level == "info" else wording.level,
    )


def _build_detail(wording: Wording, payload: Payload) -> str:
    """Build the detail. For a failed step, it ends with the last lines of stderr, which usually have the reason."""
    detail = _WORDS.format(wording.detail, p=payload).strip()
    stderr = getattr(payload, "stderr_summary", "")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] if isinstance(stderr, str) else []
    if lines and (code := getattr(payload, "exit_code", None)):
        lines.insert(0, f"exit code {code}")
    shown = lines if len(lines) <= _MAX_LINES else [lines[0], "…", *lines[1 - _MAX_LINES :]]
    return " ".join([detail, *([" | ".join(line[:_MAX_STDERR_LINE] for line in shown)] if shown else [])])


def render_plain(line: Line) -> str:
    """Render a line without color, with aligned columns."""
    return "  ".join(_columns(line)).rstrip()


def render_rich(line: Line, *, is_wide: bool) -> Text:
    """Render a line with color, without columns on a narrow terminal."""
    start, trace, turn, skill, action, status, detail = _columns(line)
    parts = [(start, "dim"), (trace, "dim"), (turn, "cyan"), (skill, "magenta"), (action, "")]
    parts += [(status, _STYLES[line.level]), (detail, "")]
    if not is_wide:
        parts = [(" ".join(part.split()), style) for part, style in parts[1:]]
    text = Text("  ").join([Text(part, style) for part, style in parts])
    text.rstrip()
    return text


def _columns(line: Line) -> tuple[str, ...]:
    return (
        line.time,
        line.trace,
        f"turn {line.turn:>2}",
        _fit(line.skill, 16),
        _fit(line.action, 25),
        _fit(line.status, 11),
        line.detail,
    )


def _fit(text: str, width: int) -> str:
    """Pad to a width in terminal cells. Longer text is not truncated."""
    return text if cell_len(text) >= width else set_cell_size(text, width)


def _build_console(stream: TextIO) -> Console | None:
    """Return None if plain text is needed: no terminal, a dumb one, or `NO_COLOR`."""
    # By the convention of no-color.org any value counts, except an empty one.
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return None
    return Console(file=stream, markup=False, highlight=False, emoji=False)
