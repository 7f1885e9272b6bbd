"""The state of a run: what is known of it. `state.apply` changes it, entry by entry; nothing here does I/O."""

from dataclasses import dataclass, field

from metier.context.layers import Exchange
from metier.decisions import ModelDecision, StepExecutionResult, TaskState
from metier.engine.authority import KEPT_PAUSES, change_model, put_back, take_authority
from metier.engine.entries.limits import Limits, LimitsRaised
from metier.engine.entries.model import DecodeFailed, ModelCallStarted, Rejection
from metier.engine.entries.question import InputAsked
from metier.engine.entries.run import (
    ModelChanged,
    RunAdopted,
    RunFailed,
    RunPaused,
    RunReopened,
    RunStarted,
    SkillCodeAccepted,
)
from metier.engine.entries.skill import DisclosedPiece
from metier.engine.entries.step import UndoFinished, UndoStarted
from metier.engine.entries.task import PlannedStep, ResultChecked
from metier.engine.phases import IllegalTransition, Phase, check_transition
from metier.engine.state_parts.child import Child
from metier.engine.state_parts.hook_memory import HookMemory
from metier.engine.steps import Step
from metier.events.skill import Candidate
from metier.events.step import PlanStep
from metier.messages import ModelReply
from metier.providers.tool_names import wire_name
from metier.store.usage import Amounts


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


def adopt(state: RunState, entry: RunAdopted) -> None:
    if state.started is None:
        raise IllegalTransition("A run is adopted that never started")
    state.started = take_authority(state.started, entry)
    state.limits = state.started.limits
    state.remembered.clear()
    state.is_foreign, state.nonce = True, entry.nonce
    answering = state.question.step_id if state.question else ""
    put_back(state.steps, answering=answering, tells_begun=entry.tells_begun)
    if state.pause is not None and state.pause.pause not in KEPT_PAUSES:
        state.pause, state.status = None, "in_progress"


def _accept_code(state: RunState, entry: SkillCodeAccepted) -> None:
    """From here on the run is pinned to these trees."""
    if state.started is None:
        raise IllegalTransition("Code is accepted for a run that never started")
    state.started = state.started.model_copy(update={"pins": {**state.started.pins, **entry.code}})


def _change_model(state: RunState, entry: ModelChanged) -> None:
    if state.started is None:
        raise IllegalTransition("The model of a run changes that never started")
    state.started = change_model(state.started, entry)
    # Another model has another window and another tokenizer.
    state.prompt_limit, state.factor = None, 1.0


def reopen(
    state: RunState,
    entry: LimitsRaised | RunReopened | SkillCodeAccepted | ModelChanged | UndoStarted | UndoFinished,
) -> None:
    """Raise limits, take changed code, or undo the end and nothing else: what was done and said stays.

    Files that were restored are no concern of the run: it knows what it did.
    """
    if isinstance(entry, UndoStarted | UndoFinished):
        state.undone += isinstance(entry, UndoStarted)
        return
    if isinstance(entry, SkillCodeAccepted):
        _accept_code(state, entry)
        return
    if isinstance(entry, ModelChanged):
        _change_model(state, entry)
        return
    if isinstance(entry, LimitsRaised):
        raised = entry.model_dump(include={"max_turns", "max_cost_usd"}, exclude_none=True)
        state.limits = state.limits.model_copy(update=raised)
        return
    if entry.step_id:
        step = state.step(entry.step_id)
        step.phase, step.finished, state.pause, state.status = "running", None, None, "in_progress"
        return
    if state.phase != "ERROR":
        raise IllegalTransition("Only a run that failed can be reopened")
    state.reopened = state.failure.reason if state.failure is not None else ""
    state.failure, state.status, state.result, state.phase = None, "in_progress", "", state.failed_in
    if state.reply is not None and state.reply.shortfall is not None:
        # The backbone had given up in this very reply: it is asked again.
        state.reply, state.decision, state.steps, state.phase = None, None, [], "CALL_LLM"
