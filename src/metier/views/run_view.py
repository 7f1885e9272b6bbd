"""The view of a run: steps, texts, notes, usage, and the pending question. Pure values, folded from events.

Terminal, web console and editor render these values; none of them reads an event or a journal entry.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metier.events.step import PlanStep
from metier.events.task import TaskStepState
from metier.values import JsonValue

type StepState = Literal["running", "waiting", "succeeded", "failed", "denied", "timeout", "skipped", "in_doubt"]
type StepKind = Literal["tool", "command", "skill", "question", "child", "control"]
"""`control`: a call by which the model steers the run; it is shown with `-v` only, because its effect is shown."""
type NoteLevel = Literal["heading", "info", "detail", "warning", "error", "plan", "user"]
"""`detail` is shown with `-v` only; `plan` if there is no checklist on the screen."""
type CallState = Literal["running", "replied", "failed", "retrying"]
type WaitKind = Literal["model", "retry", "step", "approval", "input", "pause"]


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens and cost. Calls without a known price are counted in `unpriced_calls`, not as free."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0

    @property
    def known_cost_usd(self) -> float | None:
        """Return the cost; None if the cost of a call is unknown."""
        return None if self.unpriced_calls else self.cost_usd

    def plus(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            unpriced_calls=self.unpriced_calls + other.unpriced_calls,
        )


class StepView(Struct, frozen=True, kw_only=True, tag_field="item", tag="step"):
    """One call: its arguments, its state, and the beginning of its output."""

    step_id: str
    turn: int = 0
    skill: str = ""
    tool: str = ""
    line: str = ""
    """The arguments in one line that is safe to show."""
    arguments: JsonValue = None
    """As in the event: without secrets, long values truncated."""
    state: StepState = "running"
    kind: StepKind = "tool"
    started_at: datetime | None = None
    duration_ms: float = 0
    exit_code: int | None = None
    output: str = ""
    """The beginning of the output, in lines."""
    output_lines: int = 0
    """Number of lines of output; 0 if unknown."""
    diff: str | None = None
    """The first lines of its file change; None in logs of older versions."""
    diff_lines: int = 0
    error: str = ""
    rule: str = ""
    """The rule that allowed, asked or denied."""
    verdict: str = ""
    """Policy decision: allow, ask or deny."""
    effect: str = ""
    """Effect class of the call's tool."""
    idempotency_key: str = ""
    attempts: int = 1
    child_run_id: str = ""
    approval_id: str = ""

    @property
    def is_over(self) -> bool:
        return self.state not in ("running", "waiting")


class TextView(Struct, frozen=True, kw_only=True, tag_field="item", tag="text"):
    """The model's text in addition to its calls."""

    turn: int
    text: str
    is_cut: bool = False
    """True if the event log has only the beginning."""


class NoteView(Struct, frozen=True, kw_only=True, tag_field="item", tag="note"):
    """A note: a skill took over, a retry, a warning."""

    turn: int
    level: NoteLevel
    text: str


type Item = StepView | TextView | NoteView
"""Tagged, so that clients can parse the JSON of a server."""


class CallView(Struct, frozen=True, kw_only=True):
    """One request to a model, including its retries."""

    turn: int
    provider: str
    model: str
    state: CallState = "running"
    attempt: int = 1
    started_at: datetime | None = None
    latency_ms: float = 0
    stop_reason: str = ""
    usage: Usage = Usage()


class Waiting(Struct, frozen=True, kw_only=True):
    """The operation or question that the run waits for now."""

    kind: WaitKind
    text: str = ""
    since: datetime | None = None
    id: str = ""
    """The ID of the approval, the question or the step."""
    tool: str = ""
    arguments: JsonValue = None
    rule: str = ""
    fields: JsonValue = None
    expires_at: datetime | None = None
    resume_with: str = ""
    delay_seconds: float = 0


class ContextUse(Struct, frozen=True, kw_only=True):
    """The content of the model's window, in tokens."""

    tokens: int = 0
    limit: int = 0
    layers: tuple[tuple[str, int], ...] = ()
    tool_schema_tokens: int = 0


class RunLimits(Struct, frozen=True, kw_only=True):
    """Limits of the run as known from events: raised limits, and those of a child run."""

    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None


class TaskStepView(Struct, frozen=True, kw_only=True):
    """One file of a task."""

    file: str
    name: str = ""
    state: TaskStepState = "pending"
    message: str = ""
    """Why it failed or was skipped."""


class RunView(Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    run_id: str = ""
    parent_run_id: str = ""
    context_id: str = ""
    task: str = ""
    agent: str = ""
    provider: str = ""
    model: str = ""
    profile: str = ""
    sandbox: str = ""
    mode: str = ""
    status: str = ""
    """A `TaskState`; empty before the run started."""
    reason: str = ""
    message: str = ""
    """Why it failed or paused."""
    turn: int = 0
    skill: str = ""
    items: tuple[Item, ...] = ()
    """Steps, texts and notes in chronological order."""
    calls: tuple[CallView, ...] = ()
    waiting: Waiting | None = None
    draft: str = ""
    """The text of the reply that is arriving."""
    answer: str = ""
    answer_is_cut: bool = False
    usage: Usage = Usage()
    context: ContextUse = ContextUse()
    limits: RunLimits = RunLimits()
    plan: tuple[PlanStep, ...] = ()
    task_steps: tuple[TaskStepView, ...] = ()
    """The steps of the task definition, if there is one."""
    artifacts: tuple[str, ...] = ()
    started_at: datetime | None = None
    updated_at: datetime | None = None
    duration_ms: float = 0
    seq: int = 0
    """The number of the last event that was folded."""
    children: tuple["RunView", ...] = ()

    @property
    def steps(self) -> tuple[StepView, ...]:
        return tuple(item for item in self.items if isinstance(item, StepView))

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed", "timeout", "blocked", "escalated", "canceled")

    @property
    def total_usage(self) -> Usage:
        """Usage including child runs."""
        total = self.usage
        for child in self.children:
            total = total.plus(child.total_usage)
        return total

    @property
    def total_turns(self) -> int:
        """Turns including child runs: a task calls no model itself."""
        return sum(run.turn for run in self.walk())

    def find_step(self, step_id: str) -> StepView | None:
        return next((step for step in self.walk_back() if step.step_id == step_id), None)

    def walk_back(self) -> Iterator[StepView]:
        """Iterate over the steps, last first."""
        return (item for item in reversed(self.items) if isinstance(item, StepView))

    def find_child(self, run_id: str) -> "RunView | None":
        """Find a run among this one's children, at any depth."""
        return next((run for run in self.walk() if run.run_id == run_id), None)

    def walk(self) -> Iterator["RunView"]:
        """Iterate over this run and its children, at any depth."""
        yield self
        for child in self.children:
            yield from child.walk()


def mark_interrupted(view: RunView) -> RunView:
    """Return the view of a run whose driver is gone: the outcome of its running steps is unknown."""
    items = tuple(
        replace(item, state="in_doubt") if isinstance(item, StepView) and item.state == "running" else item
        for item in view.items
    )
    return replace(view, items=items, children=tuple(mark_interrupted(child) for child in view.children))
