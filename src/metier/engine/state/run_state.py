"""The state of a run, folded from its journal. Only `state.fold` changes it. Pure."""

from dataclasses import dataclass, field
from typing import Self

from metier.context.layers import Exchange
from metier.decisions import ModelDecision, StepExecutionResult, TaskState
from metier.engine.entries.limits import Limits
from metier.engine.entries.model import DecodeFailed, ModelCallStarted, Rejection
from metier.engine.entries.question import InputAsked
from metier.engine.entries.run import (
    RunFailed,
    RunPaused,
    RunStarted,
)
from metier.engine.entries.skill import DisclosedPiece
from metier.engine.entries.step import HooksRan
from metier.engine.entries.task import ChildEnded, ChildRequested, PlannedStep, ResultChecked
from metier.engine.state.phases import IllegalTransition, Phase, check_transition
from metier.engine.state.steps import Step
from metier.events.skill import Candidate
from metier.events.step import PlanStep
from metier.messages import ModelReply
from metier.providers.wire import wire_name
from metier.store.usage import Amounts


@dataclass(slots=True, kw_only=True)
class Child:
    run_id: str
    step_id: str
    agent: str
    task: str
    skill: str = ""
    """The skill of a run that only calls its code; empty for agents and tasks."""
    status: TaskState = "pending"
    """`pending` until it has ended; before, only its own journal has the status."""
    ended: ChildEnded | None = None
    """Its latest end."""

    @classmethod
    def of(cls, entry: ChildRequested) -> Self:
        order = entry.order
        return cls(
            run_id=entry.child_run_id,
            step_id=entry.step_id,
            agent=order.agent,
            task=order.task_id or order.task,
            skill=order.call.skill if order.call is not None else "",
        )


@dataclass(slots=True)
class HookMemory:
    """Results of hooks about the run as a whole, from the journal."""

    done: set[str] = field(default_factory=set[str])
    context: list[str] = field(default_factory=list[str])
    """Texts for the model in addition to the task."""
    blocked: HooksRan | None = None
    """Set if hooks blocked the start of the run, or ended it."""
    is_notified: bool = False
    """True if hooks were notified of the current pause."""
    is_asked_to_stop: bool = False
    """True if `Stop` hooks answered for the current result."""
    blocks: int = 0
    """Number of times that a hook denied the run's end."""


def write_tool_name(name: str, *, call_rules: int, is_json: bool) -> str:
    """Return a tool's name as the model must write it: vendors restrict the names of native calls."""
    return wire_name(name) if call_rules >= 4 and not is_json else name


@dataclass(slots=True)
class RunState:
    run_id: str
    seq: int = 0
    phase: Phase = "INIT"
    status: TaskState = "pending"
    started: RunStarted | None = None
    turn: int = 0
    skills: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    strategy: str = ""
    min_score: float = 0.0
    """Minimum score of a suitable candidate."""
    skill: str = ""
    """The skill in charge."""
    next_skill: str = ""
    """Skill that was called while another one was in charge."""
    is_selected: bool = False
    """True if the last decision put a skill in charge by naming it, without a step."""
    used_skills: list[str] = field(default_factory=list[str])
    pieces: list[DisclosedPiece] = field(default_factory=list[DisclosedPiece])
    wanted: tuple[str, ...] = ()
    """Content that the last decision requested and that has not been disclosed."""
    call: ModelCallStarted | None = None
    """A request without a recorded reply."""
    reply: ModelReply | None = None
    decision: ModelDecision | None = None
    rejected: tuple[Rejection, ...] = ()
    repair: DecodeFailed | None = None
    """The correction in the next request about the model's last reply."""
    is_json: bool | None = None
    """True if the last decision was requested in JSON; None if the journal does not have it."""
    steps: list[Step] = field(default_factory=list[Step])
    """Steps of the current turn."""
    run: list[Exchange] = field(default_factory=list[Exchange])
    """Completed turns that requests still contain, oldest first."""
    earlier: tuple[StepExecutionResult, ...] = ()
    """Steps of turns that requests no longer contain."""
    closed: int = 0
    """Number of completed turns, including those no longer in `run`."""
    lost: set[str] = field(default_factory=set[str])
    """Content that requests no longer contain; see `Exchange.asked`."""
    new_pieces: frozenset[str] = frozenset()
    """Digests of the pieces that were disclosed since the last turn."""
    fell_back: bool = False
    failed_skills: set[str] = field(default_factory=set[str])
    """Skills whose last step failed, as the model knows."""
    told_failures: set[str] = field(default_factory=set[str])
    """Calls whose failure the model has read; see `build_identity`. Another failure of the same call ends the run."""
    undone: int = 0
    """Number of times the run's changes were undone."""
    told_nearby: dict[str, str] = field(default_factory=dict[str, str])
    """Files of project instructions that the model has read during the run, path → hash."""
    repeated: dict[str, int] = field(default_factory=dict[str, int])
    """Number of calls by identity; see `build_identity`."""
    message_ids: set[str] = field(default_factory=set[str])
    """Messages that the user sent while the run was working, and that are part of it."""
    results: list[str] = field(default_factory=list[str])
    """Results of succeeded steps, in order."""
    todo: tuple[PlanStep, ...] = ()
    """The model's plan, as it last wrote it."""
    pause: RunPaused | None = None
    question: InputAsked | None = None
    disabled: frozenset[str] = frozenset()
    """Tools that the access file disabled."""
    remembered: set[str] = field(default_factory=set[str])
    """Calls that a user allowed until the run ends; see `build_memory_key`."""
    aborted: bool = False
    """True if a user ended the run because of an interrupted step."""
    plan: tuple[PlannedStep, ...] = ()
    """Steps of the task definition, if one plans the run; `steps` are the same, in the same order."""
    children: list[Child] = field(default_factory=list[Child])
    delegated_turns: int = 0
    """Turns of child runs that the model started; they count against the run's limit."""
    accepted: bool = False
    """True if the result passed its checks."""
    unaccepted: ResultChecked | None = None
    """Reason why the last result was not accepted."""
    result: str = ""
    failure: RunFailed | None = None
    failed_in: Phase = "INIT"
    """Phase of the failure, in which a reopened run continues."""
    reopened: str = ""
    """Reason of the failure before the run was reopened, until a model replies."""
    limits: Limits = field(default_factory=Limits)
    """Current limits, including those that a user raised."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    # The order matters: an entry without a time is added to the hour of the last key.
    usage: dict[tuple[str, str, str], Amounts] = field(default_factory=dict[tuple[str, str, str], Amounts])
    """Usage by hour, model and skill, without child runs and without the entries that a fork copied."""
    prompt_limit: int | None = None
    """Maximum prompt tokens, if the provider rejected a larger prompt."""
    factor: float = 1.0
    """Correction of the token estimate, learned from the vendor's reports."""
    attempts: int = 0
    """Number of times the run was resumed since its last progress."""
    deaths: int = 0
    """Number of consecutive drivers that died since its last progress."""
    hooks: HookMemory = field(default_factory=HookMemory)
    nonce: str = ""
    """Nonce of the adoption; see `RunAdopted`."""
    is_foreign: bool = False
    """True if the current plan comes from a reply or request before the run was adopted."""

    def step(self, step_id: str) -> Step:
        """Return a step of this turn. Raises `IllegalTransition` for an unknown one."""
        for step in self.steps:
            if step.step_id == step_id:
                return step
        raise IllegalTransition(f"Turn {self.turn} has no step {step_id!r}")

    @property
    def has_current_call_rules(self) -> bool:
        """Return True if calls are read and rejected by version 2 of the rules; see `CALL_RULES`."""
        return self.call_rules >= 2

    @property
    def call_rules(self) -> int:
        """Return the version of the rules for reading and rejecting calls; see `CALL_RULES`."""
        return self.started.call_rules if self.started is not None else 1

    def write_tool_name(self, name: str) -> str:
        """Return a tool's name as the model must write it; a planned run has no model, so it uses the own name."""
        return name if self.plan else write_tool_name(name, call_rules=self.call_rules, is_json=bool(self.is_json))

    @property
    def is_dry_run(self) -> bool:
        """Return True if it only plans."""
        return self.started is not None and self.started.mode == "dry_run"

    @property
    def total_turns(self) -> int:
        """Return the number of turns, including those of child runs."""
        return self.turn + sum(child.ended.turns for child in self.children if child.ended is not None)

    @property
    def needs_overview(self) -> bool:
        """Return True if the skill in charge has not been disclosed yet."""
        return bool(self.skill) and not any(p.skill == self.skill and p.stage == 1 for p in self.pieces)

    def enter(self, phase: Phase) -> None:
        check_transition(self.phase, phase)
        self.phase = phase
