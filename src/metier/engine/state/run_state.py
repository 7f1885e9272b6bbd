"""The state of a run, folded from its journal. `state.fold` changes it, entry by entry; nothing here does I/O."""

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
from metier.providers.tool_names import wire_name
from metier.store.usage import Amounts


@dataclass(slots=True, kw_only=True)
class Child:
    run_id: str
    step_id: str
    agent: str
    task: str
    skill: str = ""
    """Whose code is all that it calls; empty where an agent or a task does the work."""
    status: TaskState = "pending"
    """`pending` until it ended: how it stands meanwhile, its own journal knows."""
    ended: ChildEnded | None = None
    """How it ended last."""

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
    """What the journal says of hooks that are about the run as a whole."""

    done: set[str] = field(default_factory=set[str])
    context: list[str] = field(default_factory=list[str])
    """What the model is told beside the task."""
    blocked: HooksRan | None = None
    """The run was not let begin, or was ended."""
    is_notified: bool = False
    """Of the present pause."""
    is_asked_to_stop: bool = False
    """`Stop` hooks have spoken about the present result."""
    blocks: int = 0
    """How often a hook did not let the run finish."""


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
    """From this score on a candidate counts as an answer to the request."""
    skill: str = ""
    """The skill in charge."""
    next_skill: str = ""
    """The skill that was called while another one was in charge."""
    is_selected: bool = False
    """The last decision put a skill in charge by naming it, without a step."""
    used_skills: list[str] = field(default_factory=list[str])
    pieces: list[DisclosedPiece] = field(default_factory=list[DisclosedPiece])
    wanted: tuple[str, ...] = ()
    """Disclosure that the last decision asked for and that has not been given yet."""
    call: ModelCallStarted | None = None
    """A request whose reply is not recorded."""
    reply: ModelReply | None = None
    decision: ModelDecision | None = None
    rejected: tuple[Rejection, ...] = ()
    repair: DecodeFailed | None = None
    """What the next request tells the model about its last reply."""
    is_json: bool | None = None
    """The last decision was asked for in JSON; None where the journal does not say."""
    steps: list[Step] = field(default_factory=list[Step])
    """Those of the current turn."""
    run: list[Exchange] = field(default_factory=list[Exchange])
    """Completed turns, oldest first, as far as requests still have room for them."""
    earlier: tuple[StepExecutionResult, ...] = ()
    """The steps of turns that requests no longer hold."""
    closed: int = 0
    """How many turns were completed, those among them that are not in `run` any more."""
    lost: set[str] = field(default_factory=set[str])
    """What requests held once and no longer hold, see `Exchange.asked`."""
    new_pieces: frozenset[str] = frozenset()
    """Digests of the pieces that were disclosed since the last turn."""
    fell_back: bool = False
    failed_skills: set[str] = field(default_factory=set[str])
    """Skills whose last work failed, and the model has read why."""
    told_failures: set[str] = field(default_factory=set[str])
    """Calls whose failure the model has read; see `build_identity`. The same one failing again ends the run."""
    undone: int = 0
    """How often changes of the run were taken back."""
    told_nearby: dict[str, str] = field(default_factory=dict[str, str])
    """Files of project instructions that the model was told of during the run, path → hash."""
    repeated: dict[str, int] = field(default_factory=dict[str, int])
    """How often each identical call was made."""
    results: list[str] = field(default_factory=list[str])
    """What each succeeded step gave, in order, for the step that summarizes."""
    todo: tuple[PlanStep, ...] = ()
    """The model's own list of what is to be done, as it last wrote it."""
    pause: RunPaused | None = None
    question: InputAsked | None = None
    disabled: frozenset[str] = frozenset()
    """Tools that the access file turned off."""
    remembered: set[str] = field(default_factory=set[str])
    """Calls that a user allowed until the run ends; see `build_memory_key`."""
    aborted: bool = False
    """A user ended the run over a step in doubt."""
    plan: tuple[PlannedStep, ...] = ()
    """The steps of the task definition, where one plans the run; `steps` are the same, in the same order."""
    children: list[Child] = field(default_factory=list[Child])
    delegated_turns: int = 0
    """What children of this run's own choice took; they count against its limit."""
    accepted: bool = False
    """The result holds what was asked of it."""
    unaccepted: ResultChecked | None = None
    """Why the last result was not accepted."""
    result: str = ""
    failure: RunFailed | None = None
    failed_in: Phase = "INIT"
    """The phase in which it failed, and continues when it is reopened."""
    reopened: str = ""
    """The reason of the failure that the run was reopened after, until a model replies."""
    limits: Limits = field(default_factory=Limits)
    """What bounds the run now: as it was started, and as a user raised it since."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    usage: dict[tuple[str, str, str], Amounts] = field(default_factory=dict[tuple[str, str, str], Amounts])
    """By hour, model and skill, without child runs and without the entries that a fork copied."""
    prompt_limit: int | None = None
    """The largest prompt in tokens, where the provider found a larger one too long."""
    factor: float = 1.0
    """Correction of the token estimate, learnt from what the vendor reported."""
    attempts: int = 0
    """How often the run was continued with since it last got any further."""
    deaths: int = 0
    """How many drivers in a row died since it last got any further."""
    hooks: HookMemory = field(default_factory=HookMemory)
    nonce: str = ""
    """Of the adoption; see `RunAdopted`."""
    is_foreign: bool = False
    """What is planned now comes from a reply or an order that the run had before it was adopted."""

    def step(self, step_id: str) -> Step:
        """Raises `IllegalTransition`: the journal names a step that this turn does not have."""
        for step in self.steps:
            if step.step_id == step_id:
                return step
        raise IllegalTransition(f"Turn {self.turn} has no step {step_id!r}")

    @property
    def has_current_call_rules(self) -> bool:
        """Whether calls are read and refused as in version 2 of the rules; see `CALL_RULES`."""
        return self.call_rules >= 2

    @property
    def call_rules(self) -> int:
        """Version of the rules by which calls are read and refused; see `CALL_RULES`."""
        return self.started.call_rules if self.started is not None else 1

    def write_tool_name(self, name: str) -> str:
        """Return a tool's name as the model must write it now; the steps of a task are written by its author."""
        return name if self.plan else write_tool_name(name, call_rules=self.call_rules, is_json=bool(self.is_json))

    @property
    def is_dry_run(self) -> bool:
        """It only plans."""
        return self.started is not None and self.started.mode == "dry_run"

    @property
    def total_turns(self) -> int:
        """Its turns and those of its child runs, like tokens and cost."""
        return self.turn + sum(child.ended.turns for child in self.children if child.ended is not None)

    @property
    def needs_overview(self) -> bool:
        """A skill is in charge and nothing of it was shown yet."""
        return bool(self.skill) and not any(p.skill == self.skill and p.stage == 1 for p in self.pieces)

    def enter(self, phase: Phase) -> None:
        check_transition(self.phase, phase)
        self.phase = phase
