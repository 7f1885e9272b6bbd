"""The spans of a trace, folded from the journal of a run, with the attributes of `telemetry.otel_names`. Pure.

Attributes have nothing that a user, a model or a tool wrote, unless content is asked for.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.decisions import ActionStep
from metier.engine.entries.base import TimedEntry
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import DecisionMade, ModelCallStarted, ModelReplied, Rejection
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked, InputGiven
from metier.engine.entries.run import (
    TAKEN_BY_WORKER,
    RunFailed,
    RunFinished,
    RunReopened,
    RunResumed,
    RunStarted,
)
from metier.engine.entries.skill import CatalogLoaded
from metier.engine.entries.step import DoubtResolved, StepFinished, StepStarted
from metier.engine.entries.task import ChildRequested
from metier.messages import ModelReply, TextPart, ToolCallPart
from metier.providers.facts import find_cost
from metier.telemetry import otel_names as names
from metier.telemetry.tracing import AttributeValue, Span, SpanKind, TraceParent, build_entry_id, build_span_id

type _Attributes = dict[str, AttributeValue]
_BUILT_IN_AGENT = "metier"
_MCP_SEPARATOR = "/"
_SKILL_STATUS = {"succeeded": "success", "timeout": "timeout"}
_MAX_NAMES = 128
"""Maximum number of skill names on one span; backends truncate long lists."""
_SUBJECT_OF = {
    names.CHAT: names.REQUEST_MODEL,
    names.EXECUTE_TOOL: names.TOOL_NAME,
    names.INVOKE_AGENT: names.AGENT_NAME,
    names.INVOKE_WORKFLOW: names.WORKFLOW_NAME,
    names.RUN_SCRIPT: names.SCRIPT,
    names.AWAIT_APPROVAL: names.TOOL_NAME,
}
"""Attribute whose value is in a span's name, by operation."""
_NAMES_A_TOOL = ("disabled_tool", "unlisted_tool")
"""Codes of rejected calls whose tool exists."""
RUN = "run"
MODEL = "model"
INTERRUPTED = "interrupted"
"""`error.type` of a span whose process died before its end."""
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class _Fresh(NamedTuple):
    """A message that the next request shows the model for the first time."""

    role: str
    text: str
    call_id: str = ""


@dataclass(slots=True)
class _Totals:
    """Cost of the run itself: child runs have spans of their own and are not counted twice."""

    turns: int = 0
    resumes: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, entry: ModelReplied) -> None:
        usage = entry.reply.usage
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cache_read_tokens += usage.cache_read_tokens
        self.cost_usd += entry.cost_usd


@dataclass(slots=True, kw_only=True)
class _OpenSpan:
    span_id: str
    parent_id: str
    began: datetime
    attributes: dict[str, AttributeValue]
    kind: SpanKind = "internal"

    @property
    def name(self) -> str:
        """Build the name by the conventions: the operation and its subject, both of low cardinality."""
        operation = str(self.attributes.get(names.OPERATION, ""))
        subject = self.attributes.get(_SUBJECT_OF.get(operation, ""), "")
        return f"{operation} {subject}" if subject else operation

    @property
    def call_id(self) -> str:
        return str(self.attributes.get(names.TOOL_CALL_ID, ""))


class SpanFold:
    """Folds the entries of one run in order, and returns the spans that each of them closes."""

    def __init__(self, run_id: str, *, with_content: bool = False) -> None:
        self.run_id = run_id
        self.trace: TraceParent | None = None
        """The span of the run; None until it has started."""
        self._seq = 0
        self._forked_at = 0
        self._with_content = with_content
        self._started: RunStarted | None = None
        self._now = _EPOCH
        self._open: dict[str, _OpenSpan] = {}
        self._planned: dict[str, ActionStep] = {}
        self._totals = _Totals()
        self._fresh: list[_Fresh] = []
        """Messages that the model has not read yet, for spans that carry content."""

    def take(self, entry: Entry) -> list[Span]:
        """Return the spans that this entry closes, the innermost first."""
        self._seq += 1
        self._now = self._get_time(entry)
        closed = self._close(entry)
        # A fork's copied entries belong to the parent run, which has exported their spans.
        return closed if self._seq > self._forked_at else []

    def get_context(self, key: str) -> str:
        """Return the `traceparent` of a running step by ID, or of the model call as `MODEL`; otherwise empty."""
        found = self._open.get(key)
        if found is None or self.trace is None:
            return ""
        return TraceParent(self.trace.trace_id, found.span_id, is_sampled=self.trace.is_sampled).render()

    def _get_time(self, entry: Entry) -> datetime:
        """Return the time of an entry; in journals without times, computed from the recorded durations."""
        if isinstance(entry, RunStarted):
            return datetime.fromisoformat(entry.started_at) if entry.started_at else self._now
        if isinstance(entry, TimedEntry) and entry.recorded_at:
            # A clock that was set back, or another machine's, must not give a span a negative length.
            return max(self._now, datetime.fromisoformat(entry.recorded_at))
        if isinstance(entry, ModelReplied):
            return self._now + timedelta(milliseconds=entry.latency_ms)
        if isinstance(entry, StepFinished | CatalogLoaded):
            return self._now + timedelta(milliseconds=entry.duration_ms)
        return self._now

    def _close(self, entry: Entry) -> list[Span]:
        match entry:
            case RunStarted():
                return self._begin_run(entry)
            case CatalogLoaded():
                return self._load_skills(entry)
            case RunReopened():
                return self._reopen(entry)
            case RunFinished() | RunFailed():
                return self._end_run(entry)
            case RunResumed():
                return self._resume(entry)
            case ModelCallStarted() | ModelReplied() | DecisionMade():
                return self._follow_model(entry)
            case StepStarted() | StepFinished() | DoubtResolved() | ChildRequested():
                return self._follow_step(entry)
            case ApprovalAsked() | ApprovalDecided() | InputAsked() | InputGiven():
                return self._follow_wait(entry)
            case _:
                return []

    def _begin_run(self, entry: RunStarted) -> list[Span]:
        self._started, self._forked_at = entry, entry.forked_at
        parent = TraceParent.parse(entry.trace_parent)
        span_id = build_span_id(self.run_id, RUN)
        # Whether the trace is sampled was decided where it began.
        self.trace = TraceParent(entry.trace_id, span_id, is_sampled=parent.is_sampled if parent else True)
        self._begin(RUN, _name_run(entry), span_id=span_id, parent_id=parent.span_id if parent else "")
        if self._with_content:
            self._fresh.append(_Fresh("user", entry.task))
        return []

    def _load_skills(self, entry: CatalogLoaded) -> list[Span]:
        self._begin(names.LOAD_SKILLS, _describe_catalog(entry))
        # The entry is recorded when loading has ended.
        self._open[names.LOAD_SKILLS].began -= timedelta(milliseconds=entry.duration_ms)
        return [self._finish(names.LOAD_SKILLS, {})]

    def _reopen(self, entry: RunReopened) -> list[Span]:
        """Open a new child span of the run's span, which was exported when the run failed."""
        if entry.step_id or self._started is None or self.trace is None:
            return []
        self._begin(RUN, _name_run(self._started), parent_id=self.trace.span_id)
        return []

    def _resume(self, entry: RunResumed) -> list[Span]:
        """Return the time in the queue, if a worker takes the run for the first time."""
        self._totals.resumes += 1
        # The entry right after the start, or after the entries that a fork copied.
        is_first = self._seq == max(1, self._forked_at) + 1
        if entry.reason != TAKEN_BY_WORKER or not is_first or RUN not in self._open:
            return []
        self._begin(names.AWAIT_WORKER, {names.OPERATION: names.AWAIT_WORKER})
        self._open[names.AWAIT_WORKER].began = self._open[RUN].began
        return [self._finish(names.AWAIT_WORKER, {})]

    def _end_run(self, entry: RunFinished | RunFailed) -> list[Span]:
        reason = entry.reason if isinstance(entry, RunFailed) else INTERRUPTED
        # A run that ends with open spans was killed in between, or canceled.
        inner = [key for key in self._open if key != RUN]
        closed = [self._finish(key, {}, error=reason) for key in reversed(inner)]
        if self._started is not None and RUN in self._open:
            known = _describe_run_end(self._started, entry, self._totals, with_content=self._with_content)
            error = entry.reason if isinstance(entry, RunFailed) else ""
            closed.append(self._finish(RUN, known, error=error))
        return closed

    def _follow_model(self, entry: ModelCallStarted | ModelReplied | DecisionMade) -> list[Span]:
        match entry:
            case ModelCallStarted():
                assert self._started is not None
                # An open request has no reply because its driver was killed.
                closed = [self._finish(MODEL, {}, error=INTERRUPTED)] if MODEL in self._open else []
                # Not counted up, because a repeated request has the number of its turn.
                self._totals.turns = max(self._totals.turns, entry.turn)
                self._begin(MODEL, _describe_model_call(self._started, entry), kind="client")
                return closed
            case ModelReplied():
                self._totals.add(entry)
                fresh, self._fresh = self._fresh, []
                known = _describe_reply(entry, fresh if self._with_content else None)
                return [self._finish(MODEL, known)] if MODEL in self._open else []
            case DecisionMade():
                numbered = enumerate(entry.decision.planned_actions, start=1)
                self._planned = {f"{entry.turn}.{number}": action for number, action in numbered}
                return [self._reject(each, number) for number, each in enumerate(entry.rejected, start=1)]

    def _reject(self, rejection: Rejection, number: int) -> Span:
        """Build the span of a call that is answered with an error and never becomes a step."""
        key = f"/rejected/{number}"
        span_id = build_entry_id(self.run_id, self._seq, key)
        self._begin(key, _describe_rejection(rejection), span_id=span_id)
        return self._finish(key, {}, error=rejection.code)

    def _follow_step(self, entry: StepStarted | StepFinished | DoubtResolved | ChildRequested) -> list[Span]:
        key = entry.step_id
        match entry:
            case StepStarted():
                # An open attempt has no result because its driver was killed.
                closed = [self._finish(key, {}, error=INTERRUPTED)] if key in self._open else []
                self._begin(key, _describe_step(entry, with_content=self._with_content))
                return closed
            case StepFinished():
                return self._finish_step(entry)
            case ChildRequested():
                if key in self._open:
                    self._open[key].attributes[names.CHILD_RUN_ID] = entry.child_run_id
                return []
            case DoubtResolved():
                known: _Attributes = {names.STEP_STATUS: "in_doubt"}
                return [self._finish(key, known, error=INTERRUPTED)] if key in self._open else []

    def _finish_step(self, entry: StepFinished) -> list[Span]:
        closed: list[Span] = []
        if entry.step_id not in self._open:
            action = self._planned.get(entry.step_id)
            if action is None or not entry.is_error:
                return []  # an answer of the user or a plan of the model: nothing was executed
            self._begin(entry.step_id, _describe_action(action, entry.step_id))
        if entry.script:
            closed.append(self._build_script(entry))
        if self._with_content:
            self._fresh.append(_Fresh("tool", entry.text, self._open[entry.step_id].call_id))
        error = (entry.error_type or entry.status) if entry.is_error else ""
        known = _describe_result(entry, with_content=self._with_content)
        return [*closed, self._finish(entry.step_id, known, error=error)]

    def _build_script(self, entry: StepFinished) -> Span:
        """Build the span of a script's process, inside the call that started it."""
        open_span = _OpenSpan(
            span_id=build_entry_id(self.run_id, self._seq, "/script"),
            parent_id=self._open[entry.step_id].span_id,
            # Not before its step: the duration is measured by another clock than the times of entries.
            began=max(self._open[entry.step_id].began, self._now - timedelta(milliseconds=entry.duration_ms)),
            attributes=_describe_script(entry),
        )
        error = (entry.error_type or entry.status) if entry.is_error else ""
        return self._build(open_span, error=error)

    def _follow_wait(self, entry: ApprovalAsked | ApprovalDecided | InputAsked | InputGiven) -> list[Span]:
        key = entry.approval_id if isinstance(entry, ApprovalAsked | ApprovalDecided) else entry.request_id
        match entry:
            case ApprovalAsked() | InputAsked():
                self._begin(key, _describe_wait(entry, self._planned.get(entry.step_id)))
                return []
            case ApprovalDecided():
                known: _Attributes = {names.APPROVAL_DECISION: entry.decision}
                return [self._finish(key, known)] if key in self._open else []
            case InputGiven():
                return [self._finish(key, {})] if key in self._open else []

    def _begin(
        self,
        key: str,
        known: _Attributes,
        *,
        kind: SpanKind = "internal",
        span_id: str = "",
        parent_id: str | None = None,
    ) -> None:
        parent = self._open.get(RUN)
        self._open[key] = _OpenSpan(
            # Derived from the entry: an export that is repeated after a crash has the same span IDs.
            span_id=span_id or build_entry_id(self.run_id, self._seq),
            parent_id=(parent.span_id if parent else "") if parent_id is None else parent_id,
            began=self._now,
            attributes={**known, names.RUN_ID: self.run_id},
            kind=kind,
        )

    def _finish(self, key: str, known: _Attributes, *, error: str = "") -> Span:
        open_span = self._open.pop(key)
        open_span.attributes.update(known)
        return self._build(open_span, error=error)

    def _build(self, open_span: _OpenSpan, *, error: str) -> Span:
        assert self.trace is not None
        is_root = open_span.span_id == self.trace.span_id
        if error:
            open_span.attributes[names.ERROR_TYPE] = error
        return Span(
            trace_id=self.trace.trace_id,
            span_id=open_span.span_id,
            parent_id=open_span.parent_id,
            is_parent_remote=is_root,
            is_sampled=self.trace.is_sampled,
            name=open_span.name,
            kind=open_span.kind,
            start_ns=_nanoseconds(open_span.began),
            end_ns=_nanoseconds(self._now),
            attributes=open_span.attributes,
            error=error,
        )


def get_context(run_id: str, entries: Iterable[Entry], key: str) -> str:
    """Return the `traceparent` of a running step, from the journal, for its effects."""
    folding = SpanFold(run_id)
    for entry in entries:
        folding.take(entry)
    return folding.get_context(key)


def _nanoseconds(moment: datetime) -> int:
    """Compute with integers: a float has too few digits for microseconds since 1970."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


def _name_run(started: RunStarted) -> _Attributes:
    """Name the run: task definitions and called skills are workflows, everything else is an agent."""
    order = started.order
    workflow = (order.task_id or (order.call.skill if order.call is not None else "")) if order is not None else ""
    agent = started.agent or _BUILT_IN_AGENT
    named: _Attributes = (
        {names.OPERATION: names.INVOKE_WORKFLOW, names.WORKFLOW_NAME: workflow}
        if workflow
        else {names.OPERATION: names.INVOKE_AGENT, names.AGENT_NAME: agent, names.AGENT_ID: agent}
    )
    known: _Attributes = {
        **named,
        names.PROVIDER: names.name_provider(started.provider),
        names.REQUEST_MODEL: started.model,
        names.CONVERSATION_ID: started.context_id,
        names.RUN_MODE: started.mode,
        names.RUN_PROFILE: started.profile,
    }
    return {**known, names.PARENT_RUN_ID: started.parent_run_id} if started.parent_run_id else known


def _describe_run_end(
    started: RunStarted, entry: RunFinished | RunFailed, totals: _Totals, *, with_content: bool
) -> _Attributes:
    known: _Attributes = {
        names.RUN_STATUS: entry.status if isinstance(entry, RunFailed) else "completed",
        names.RUN_TURNS: totals.turns,
        names.RUN_RESUMES: totals.resumes,
        names.INPUT_TOKENS: totals.input_tokens,
        names.OUTPUT_TOKENS: totals.output_tokens,
        names.CACHE_READ_TOKENS: totals.cache_read_tokens,
        **_describe_cost(totals.cost_usd, tokens=totals.input_tokens + totals.output_tokens),
    }
    if with_content:
        known[names.INPUT_MESSAGES] = _render([_message("user", [_text(started.task)])])
        known[names.OUTPUT_MESSAGES] = _render([_message("assistant", [_text(entry.result)])])
    return known


def _describe_cost(cost: float, *, tokens: int) -> _Attributes:
    """Describe the cost; empty if a price is unknown."""
    return {} if find_cost(cost, tokens=tokens) is None else {names.COST_USD: round(cost, 9)}


def _describe_model_call(started: RunStarted, entry: ModelCallStarted) -> _Attributes:
    known: _Attributes = {
        names.OPERATION: names.CHAT,
        names.PROVIDER: names.name_provider(started.provider),
        names.REQUEST_MODEL: started.model,
        names.CONVERSATION_ID: started.context_id,
        names.TURN: entry.turn,
    }
    if entry.server_address:
        known[names.SERVER_ADDRESS] = entry.server_address
    if entry.server_port:
        known[names.SERVER_PORT] = entry.server_port
    return known


def _describe_reply(entry: ModelReplied, fresh: Sequence[_Fresh] | None) -> _Attributes:
    """Describe the reply; `fresh` is the new content of the request, None if content is not wanted."""
    reply, usage = entry.reply, entry.reply.usage
    known: _Attributes = {
        names.PROVIDER: names.name_provider(reply.provider),
        names.RESPONSE_MODEL: reply.model,
        names.FINISH_REASONS: (reply.finish_reason or reply.stop_reason,),
        names.INPUT_TOKENS: usage.input_tokens,
        names.OUTPUT_TOKENS: usage.output_tokens,
        **_describe_cost(entry.cost_usd, tokens=usage.input_tokens + usage.output_tokens),
    }
    for name, value in (
        (names.RESPONSE_ID, reply.response_id),
        (names.CACHE_READ_TOKENS, usage.cache_read_tokens),
        (names.CACHE_WRITE_TOKENS, usage.cache_write_tokens),
        (names.REASONING_TOKENS, usage.reasoning_tokens),
    ):
        if value:
            known[name] = value
    if fresh is not None:
        known[names.INPUT_MESSAGES] = _render([_message(each.role, [_part(each)]) for each in fresh])
        known[names.OUTPUT_MESSAGES] = _render([_render_reply(reply)])
    return known


def _describe_action(action: ActionStep, step_id: str) -> _Attributes:
    tool, _ = name_call(action)
    known: _Attributes = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_NAME: tool,
        names.TOOL_TYPE: "extension" if _MCP_SEPARATOR in tool else "function",
        names.STEP_ID: step_id,
    }
    return {**known, names.TOOL_CALL_ID: action.call_id} if action.call_id else known


def _describe_rejection(rejection: Rejection) -> _Attributes:
    known: _Attributes = {names.OPERATION: names.EXECUTE_TOOL, names.STEP_STATUS: "denied"}
    if rejection.code in _NAMES_A_TOOL:  # otherwise the model may have made the name up
        known[names.TOOL_NAME] = rejection.tool
    return {**known, names.TOOL_CALL_ID: rejection.call_id} if rejection.call_id else known


def _describe_step(entry: StepStarted, *, with_content: bool) -> _Attributes:
    known = _describe_action(entry.action, entry.step_id)
    known[names.STEP_EFFECT] = entry.effect
    if entry.verdict:
        known[names.STEP_VERDICT] = entry.verdict
    if entry.attempt > 1:
        known[names.STEP_ATTEMPT] = entry.attempt
    if with_content:
        known[names.TOOL_ARGUMENTS] = json.dumps(name_call(entry.action)[1], ensure_ascii=False)
    return known


def _describe_result(entry: StepFinished, *, with_content: bool) -> _Attributes:
    known: _Attributes = {names.STEP_STATUS: entry.status}
    if entry.skill_name:
        known[names.SKILL] = entry.skill_name
    if entry.exit_code is not None:
        known |= _describe_process(entry)
    if with_content:
        known[names.TOOL_RESULT] = entry.text
    return known


def _describe_script(entry: StepFinished) -> _Attributes:
    """Describe duration, bytes and outcome of a script's process."""
    return {
        names.OPERATION: names.RUN_SCRIPT,
        names.SCRIPT: f"{entry.skill_name}/{entry.script}",
        names.SKILL: entry.skill_name,
        names.STEP_ID: entry.step_id,
        names.STEP_STATUS: entry.status,
        names.DURATION_MS: entry.duration_ms,
        **_describe_process(entry),
        names.SKILL_NAME: entry.skill_name,
        names.SKILL_SCRIPT: entry.script,
        names.SKILL_DURATION_MS: entry.duration_ms,
        names.SKILL_STATUS: _SKILL_STATUS.get(entry.status, "error"),
        names.SKILL_STDOUT_BYTES: entry.stdout_bytes,
        names.SKILL_STDERR_BYTES: entry.stderr_bytes,
        **({names.SKILL_ERROR_TYPE: entry.error_type or entry.status} if entry.is_error else {}),
    }


def _describe_catalog(entry: CatalogLoaded) -> _Attributes:
    return {
        names.OPERATION: names.LOAD_SKILLS,
        names.SKILL_COUNT: len(entry.skills),
        names.SKILL_NAMES: entry.skills[:_MAX_NAMES],
        names.SKILL_PROBLEMS: entry.problems,
    }


def _describe_wait(entry: ApprovalAsked | InputAsked, action: ActionStep | None) -> _Attributes:
    if isinstance(entry, InputAsked):
        return {names.OPERATION: names.AWAIT_INPUT, names.STEP_ID: entry.step_id}
    tool = name_call(action)[0] if action is not None else ""
    return {names.OPERATION: names.AWAIT_APPROVAL, names.TOOL_NAME: tool, names.STEP_ID: entry.step_id}


def _describe_process(entry: StepFinished) -> _Attributes:
    known: _Attributes = {
        names.STDOUT_BYTES: entry.stdout_bytes,
        names.STDERR_BYTES: entry.stderr_bytes,
        names.TRUNCATED: entry.truncated,
    }
    return {**known, names.EXIT_CODE: entry.exit_code} if entry.exit_code is not None else known


def _render_reply(reply: ModelReply) -> JsonValue:
    parts: list[JsonValue] = []
    for part in reply.parts:
        if isinstance(part, TextPart):
            parts.append(_text(part.text))
        elif isinstance(part, ToolCallPart):
            parts.append({"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments})
    return {**_message("assistant", parts), "finish_reason": reply.stop_reason}


def _part(fresh: _Fresh) -> JsonValue:
    if fresh.role == "tool":
        return {"type": "tool_call_response", "id": fresh.call_id, "response": fresh.text}
    return _text(fresh.text)


def _text(content: str) -> JsonValue:
    return {"type": "text", "content": content}


def _message(role: str, parts: list[JsonValue]) -> dict[str, JsonValue]:
    return {"role": role, "parts": parts}


def _render(messages: Sequence[JsonValue]) -> str:
    return json.dumps(messages, ensure_ascii=False)
