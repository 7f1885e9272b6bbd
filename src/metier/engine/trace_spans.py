"""The spans of a trace, folded from the journal of a run. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from metier.decisions import ActionStep
from metier.engine import span_attributes as attributes
from metier.engine.entries.base import TimedEntry
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import DecisionMade, ModelCallStarted, ModelReplied
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked, InputGiven
from metier.engine.entries.run import RunFailed, RunFinished, RunReopened, RunResumed, RunStarted
from metier.engine.entries.skill import CatalogLoaded
from metier.engine.entries.step import DoubtResolved, StepFinished, StepStarted
from metier.engine.entries.task import ChildRequested
from metier.telemetry.otel import names
from metier.telemetry.otel.span import AttributeValue, Span, SpanKind
from metier.telemetry.otel.trace_context import TraceParent, build_entry_id, build_span_id

_SUBJECT_OF = {
    names.CHAT: names.REQUEST_MODEL,
    names.EXECUTE_TOOL: names.TOOL_NAME,
    names.INVOKE_AGENT: names.AGENT_NAME,
    names.INVOKE_WORKFLOW: names.WORKFLOW_NAME,
    names.RUN_SCRIPT: names.SCRIPT,
    names.AWAIT_APPROVAL: names.TOOL_NAME,
}
"""Attribute whose value is in a span's name, by operation."""


@dataclass(slots=True, kw_only=True)
class OpenSpan:
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


RUN = "run"
MODEL = "model"
INTERRUPTED = "interrupted"
"""`error.type` of a span whose process ended before it did."""
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


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
        self._open: dict[str, OpenSpan] = {}
        self._planned: dict[str, ActionStep] = {}
        self._totals = attributes.Totals()
        self._fresh: list[attributes.Fresh] = []
        """Messages that the model has not read yet, for spans that carry content."""

    def take(self, entry: Entry) -> list[Span]:
        """Return the spans that this entry closes, the innermost first."""
        self._seq += 1
        self._now = self._get_time(entry)
        closed = self._close(entry)
        # Entries that a fork took over were another run's work, which has spans of its own.
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
                self._totals.resumes += 1
                return []
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
        above = TraceParent.parse(entry.trace_parent)
        span_id = build_span_id(self.run_id, RUN)
        self.trace = TraceParent(entry.trace_id, span_id, is_sampled=above.is_sampled if above else True)
        self._begin(RUN, attributes.name_run(entry), span_id=span_id, parent_id=above.span_id if above else "")
        if self._with_content:
            self._fresh.append(attributes.Fresh("user", entry.task))
        return []

    def _load_skills(self, entry: CatalogLoaded) -> list[Span]:
        self._begin(names.LOAD_SKILLS, attributes.describe_catalog(entry))
        self._open[names.LOAD_SKILLS].began -= timedelta(milliseconds=entry.duration_ms)
        return [self._finish(names.LOAD_SKILLS, {})]

    def _reopen(self, entry: RunReopened) -> list[Span]:
        """Open a new span below the run's, which was exported when the run failed."""
        if entry.step_id or self._started is None or self.trace is None:
            return []
        self._begin(RUN, attributes.name_run(self._started), parent_id=self.trace.span_id)
        return []

    def _end_run(self, entry: RunFinished | RunFailed) -> list[Span]:
        reason = entry.reason if isinstance(entry, RunFailed) else INTERRUPTED
        inner = [key for key in self._open if key != RUN]
        closed = [self._finish(key, {}, error=reason) for key in reversed(inner)]
        if self._started is not None and RUN in self._open:
            known = attributes.describe_run_end(self._started, entry, self._totals, with_content=self._with_content)
            error = entry.reason if isinstance(entry, RunFailed) else ""
            closed.append(self._finish(RUN, known, error=error))
        return closed

    def _follow_model(self, entry: ModelCallStarted | ModelReplied | DecisionMade) -> list[Span]:
        match entry:
            case ModelCallStarted():
                assert self._started is not None
                closed = [self._finish(MODEL, {}, error=INTERRUPTED)] if MODEL in self._open else []
                self._totals.turns = max(self._totals.turns, entry.turn)
                self._begin(MODEL, attributes.describe_model_call(self._started, entry), kind="client")
                return closed
            case ModelReplied():
                self._totals.add(entry)
                fresh, self._fresh = self._fresh, []
                known = attributes.describe_reply(entry, fresh if self._with_content else None)
                return [self._finish(MODEL, known)] if MODEL in self._open else []
            case DecisionMade():
                numbered = enumerate(entry.decision.planned_actions, start=1)
                self._planned = {f"{entry.turn}.{number}": action for number, action in numbered}
                return []

    def _follow_step(self, entry: StepStarted | StepFinished | DoubtResolved | ChildRequested) -> list[Span]:
        key = entry.step_id
        match entry:
            case StepStarted():
                closed = [self._finish(key, {}, error=INTERRUPTED)] if key in self._open else []
                self._begin(key, attributes.describe_step(entry, with_content=self._with_content))
                return closed
            case StepFinished():
                return self._finish_step(entry)
            case ChildRequested():
                if key in self._open:
                    self._open[key].attributes[names.CHILD_RUN_ID] = entry.child_run_id
                return []
            case DoubtResolved():
                known: attributes.Attributes = {names.STEP_STATUS: "in_doubt"}
                return [self._finish(key, known, error=INTERRUPTED)] if key in self._open else []

    def _finish_step(self, entry: StepFinished) -> list[Span]:
        closed: list[Span] = []
        if entry.step_id not in self._open:
            action = self._planned.get(entry.step_id)
            if action is None or not entry.is_error:
                return []  # an answer of the user, or a note of the model: nothing was executed
            self._begin(entry.step_id, attributes.describe_action(action, entry.step_id))
        if entry.script:
            closed.append(self._build_script(entry))
        if self._with_content:
            self._fresh.append(attributes.Fresh("tool", entry.text, self._open[entry.step_id].call_id))
        error = (entry.error_type or entry.status) if entry.is_error else ""
        known = attributes.describe_result(entry, with_content=self._with_content)
        return [*closed, self._finish(entry.step_id, known, error=error)]

    def _build_script(self, entry: StepFinished) -> Span:
        """Build the span of a script's process, inside the call that started it."""
        open_span = OpenSpan(
            span_id=build_entry_id(self.run_id, self._seq, "/script"),
            parent_id=self._open[entry.step_id].span_id,
            began=max(self._open[entry.step_id].began, self._now - timedelta(milliseconds=entry.duration_ms)),
            attributes=attributes.describe_script(entry),
        )
        error = (entry.error_type or entry.status) if entry.is_error else ""
        return self._build(open_span, error=error)

    def _follow_wait(self, entry: ApprovalAsked | ApprovalDecided | InputAsked | InputGiven) -> list[Span]:
        key = entry.approval_id if isinstance(entry, ApprovalAsked | ApprovalDecided) else entry.request_id
        match entry:
            case ApprovalAsked() | InputAsked():
                self._begin(key, attributes.describe_wait(entry, self._planned.get(entry.step_id)))
                return []
            case ApprovalDecided():
                known: attributes.Attributes = {names.APPROVAL_DECISION: entry.decision}
                return [self._finish(key, known)] if key in self._open else []
            case InputGiven():
                return [self._finish(key, {})] if key in self._open else []

    def _begin(
        self,
        key: str,
        known: attributes.Attributes,
        *,
        kind: SpanKind = "internal",
        span_id: str = "",
        parent_id: str | None = None,
    ) -> None:
        above = self._open.get(RUN)
        self._open[key] = OpenSpan(
            span_id=span_id or build_entry_id(self.run_id, self._seq),
            parent_id=(above.span_id if above else "") if parent_id is None else parent_id,
            began=self._now,
            attributes={**known, names.RUN_ID: self.run_id},
            kind=kind,
        )

    def _finish(self, key: str, known: attributes.Attributes, *, error: str = "") -> Span:
        open_span = self._open.pop(key)
        open_span.attributes.update(known)
        return self._build(open_span, error=error)

    def _build(self, open_span: OpenSpan, *, error: str) -> Span:
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
