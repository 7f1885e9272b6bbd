"""The facts of a run that are needed before its journal is opened."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from metier.approval.profile import ReadingLevel
from metier.definitions.task import TaskDefinition, TaskStep
from metier.engine.entries.task import ChildRequest
from metier.runtime.host import Host
from metier.runtime.workspace.agents import SUMMARIZER, ResolvedAgent
from metier.runtime.workspace.hooks import load_hooks
from metier.runtime.workspace.instructions import ExtraInput
from metier.tools.hook_definitions import HookCommand

type Hooks = tuple[HookCommand, ...]

RESULTS = "results"
"""Pin of the results of a task's earlier steps."""


class PreparedRun(Struct, frozen=True, kw_only=True):
    folder: Path
    agent: ResolvedAgent
    extra_input: ExtraInput | None = None
    """Additional input of a new run."""
    is_dry: bool = False
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pins of its start; empty before it has started."""
    host: Host | None = None
    """Host without the agent's settings, which children start from."""
    order: ChildRequest | None = None
    task: TaskDefinition | None = None
    """Task that plans the run, or that the run is a step of."""
    max_turns: int | None = None
    """Its current limit if it has started, which the user may have raised."""
    inherited: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pins from the parent: the files of its task, and the restrictions of all ancestors."""

    hooks: Hooks | None = None
    """Hooks of the parent; None if there is none."""
    reading_sandbox: ReadingLevel | None = None
    """Level of its read-only sandbox when it started; see `RunStarted.reading_sandbox`."""
    is_foreign: bool = False
    """True if it was started in another store and is about to be adopted."""

    @property
    def given_results(self) -> str:
        """Return the digest of earlier steps' results; empty if there are none."""
        return self.pins.get(RESULTS) or self.inherited.get(RESULTS, "")

    @property
    def is_planned(self) -> bool:
        """Return True if a task definition plans the run: it calls no model, and only its steps act."""
        return self.order is not None and bool(self.order.task_id)

    @property
    def is_plan_only(self) -> bool:
        """Return True if the run only plans, so that no connection is opened and no process started."""
        return self.is_dry or self.is_planned

    @property
    def steps(self) -> tuple[TaskStep, ...]:
        """Return the steps whose lists and rules apply: `TASK.md`, and the step itself if that is another file."""
        if self.task is None or self.order is None or not self.order.step_file:
            return ()
        own = next(step for step in self.task.steps if step.file.name == self.order.step_file)
        return (own,) if own is self.task.steps[0] else (self.task.steps[0], own)


def choose_hooks(run: PreparedRun) -> tuple[HookCommand, ...]:
    """Choose the hooks to pin to a new run. A child run has those of its parent."""
    if run.is_dry:
        return ()
    hooks = load_hooks(run.agent.host).hooks if run.hooks is None else run.hooks
    # A separate run summarizes a conversation, so the start of that run is the moment for `PreCompact`.
    is_summary = run.agent.id == SUMMARIZER
    is_begun = run.extra_input is not None and bool(run.extra_input.conversation)
    return tuple(
        hook
        for hook in hooks
        if (hook.event == "PreCompact") == is_summary and not (hook.event == "SessionStart" and is_begun)
    )
