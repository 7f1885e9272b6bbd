"""What a run needs from outside: everything with an effect, handed in once by the runtime."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.profile import ReadingLevel
from metier.context.budget import PromptMemory
from metier.context.layers import Prompt
from metier.context.tokens import TokenCounter
from metier.decisions import ActionStep
from metier.definitions.task import TaskDefinition
from metier.engine.decide import Policy
from metier.engine.delegation.partners import Partners
from metier.engine.entries.run import RunWorktree
from metier.engine.entries.skill import SkillsRanked
from metier.engine.nearby_instructions import Nearby
from metier.engine.options import RuntimeOptions
from metier.engine.skill_index import SkillIndex
from metier.engine.turn_cache import TurnCache
from metier.events.payload import Payload
from metier.ids import Clock, Ids
from metier.messages import Message, ToolSpec
from metier.providers.base import Observer, Provider
from metier.providers.facts import FactBook
from metier.providers.feature_support import FeatureMemory, FeatureSupport
from metier.providers.options import ModelOptions
from metier.providers.retry import Candidate
from metier.providers.seams import Seams
from metier.skills.options import SkillsOptions
from metier.store.base import Store
from metier.store.machine import MachineIdentity, identify_machine
from metier.tools.buffers import Buffers, NoBuffers
from metier.tools.files.snapshots import Changed
from metier.tools.hooks.definition import HookCommand
from metier.tools.hooks.hook_process import HookRun
from metier.tools.process.sandbox.protected_paths import ProtectedState
from metier.tools.toolbox import Toolbox


class WorkspaceSnapshots(Protocol):
    """Takes snapshots of the workspace; `tools.files.snapshots.Snapshots` is one."""

    def take(self) -> str: ...

    def compare(self, before: str, after: str) -> list[Changed]: ...


class Worktrees(Protocol):
    """Reads what runs changed that have a worktree of their own."""

    async def read(self, run_id: str, tree: RunWorktree) -> bytes:
        """A patch for `git apply`, empty where nothing changed. Raises `Unavailable`."""
        ...


class HookRunner(Protocol):
    """Runs hooks; `tools.hooks.run.HookRunner` is one."""

    async def run(self, hook: HookCommand, data: Mapping[str, JsonValue]) -> HookRun: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSource:
    """Where the text of a layer was read."""

    file: str
    """Relative to the workspace where it lies inside."""
    sha256: str
    """Of the whole file."""
    left_out: int = 0
    """Characters beyond the cap of the layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """The layers of the prompt that a run has from its start to its end."""

    base: str
    """The workspace's own prompt; empty where it has none."""
    safety: str
    operating: str = ""
    """How to work in Metier; older runs have it in `base`."""
    control: tuple[ToolSpec, ...] = ()
    """The tools that steer the run, as its model was told of them."""
    soul: str = ""
    profile: str = ""
    agent: str = ""
    plugins: str = ""
    project: str = ""
    project_files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path of each file of project instructions → hash of its bytes and of its imports."""
    facts: str = ""
    """What was told in the same context and is kept."""
    summary: str = ""
    """What was said in the same context before `conversation`, in short."""
    conversation: tuple[Message, ...] = ()
    """What was said before in the same context."""
    step: str = ""
    """The step of a structured task that this run carries out."""
    sources: Mapping[str, LayerSource] = field(default_factory=dict[str, LayerSource])
    """By layer; one that is not in it is built in, or was given with the task."""

    def begin(self, task: str) -> Prompt:
        return Prompt(
            operating=self.operating,
            base=self.base,
            safety=self.safety,
            soul=self.soul,
            profile=self.profile,
            agent=self.agent,
            plugins=self.plugins,
            project=self.project,
            facts=self.facts,
            summary=self.summary,
            conversation=self.conversation,
            task=task,
            step=self.step,
        )


class Services(Struct, frozen=True, kw_only=True):
    store: Store
    provider: Provider
    facts: FactBook
    policy: Policy
    tools: Toolbox
    shelf: SkillIndex
    instructions: Instructions
    model: ModelOptions
    runtime: RuntimeOptions
    skills: SkillsOptions
    clock: Clock
    ids: Ids
    workspace: Path
    run_folder: Path
    """`runs/<run_id>`: artifacts, spool, debug bodies."""
    machine: MachineIdentity = msgspec.field(default_factory=identify_machine)
    """Where effects happen; intents name it."""
    clean: Callable[[str], str]
    """Redacts and sanitises outside text before the model, the journal or the log sees it."""
    clean_body: Callable[[JsonValue], JsonValue] | None = None
    """Does the same to a whole request or reply; None where these are not kept."""
    find_new_denial: Callable[[ActionStep], str] = lambda _: ""
    """Why a rule that was added after the run started denies a call; empty if none does. Only narrows."""
    recall_ranking: Callable[[], SkillsRanked | None] = lambda: None
    """The ranking of skills to keep in a replay; None if it is computed."""
    changed: tuple[str, ...] = ()
    """Ids of definitions that are no longer what the run began with; it uses what it is pinned to."""
    sandbox: str = "none"
    """What encloses the programs that tools start: `full`, `kernel` or `none`."""
    reading_sandbox: ReadingLevel = "none"
    """The level that encloses commands that run without a question."""
    protected: ProtectedState | None = None
    """Looks at what confined programs must not change; None where none is confined."""
    snapshots: WorkspaceSnapshots | None = None
    """Takes snapshots around programs, so that their changes can be undone; None where nothing is run."""
    worktrees: Worktrees | None = None
    """Reads what runs changed that work in a worktree; None where results come from a record."""
    hooks: HookRunner | None = None
    """Runs the user's commands; None where nothing is run."""
    nearby: Nearby | None = None
    """Finds the project instructions of folders that the run comes to; None where results come from a record."""
    notices: tuple[Payload, ...] = ()
    """What there is to say before the run continues, such as a server whose tools are left out."""
    not_listed: tuple[str, ...] = ()
    """Servers of external tools whose tools have not been listed yet."""
    owner: str
    """The name of the driver, shown to a process that finds the lease held."""
    observe: Observer | None = None
    show_output: Callable[[str, str, bytes], None] | None = None
    """Receives step id, stream and bytes of a program that a step runs; None without observers."""
    buffers: Buffers = msgspec.field(default_factory=NoBuffers)
    """Files as the user's editor holds them."""
    fallbacks: tuple[Candidate, ...] = ()
    features: FeatureSupport = msgspec.field(default_factory=FeatureMemory)
    """What the endpoint of `provider` is known not to support."""
    enforces_schema: bool = False
    """The endpoint is the vendor's own: it takes the schema of a result beside tools, and tools can still be called."""
    seams: Seams = msgspec.field(default_factory=Seams)
    counter: TokenCounter = msgspec.field(default_factory=TokenCounter)
    cache: TurnCache = msgspec.field(default_factory=TurnCache)
    read_access: Callable[[], frozenset[str]] = frozenset
    """The tools that are turned off now, read once a turn. Raises `ConfigError`."""
    partners: Partners = msgspec.field(default_factory=Partners)
    """Whom the run may hand work to."""
    task: TaskDefinition | None = None
    """The definition that plans the run, as it is pinned."""
    given_results: str = ""
    """The digest of what the earlier steps of a task gave, as `earlier.build_results` makes it."""


def use_model(services: Services, options: ModelOptions, *, provider: str) -> Services:
    """Return the same services for another model, without what was remembered of requests to the one before."""
    cache = replace(services.cache, offers={}, prompts=PromptMemory())
    return replace(services, model=options, counter=TokenCounter(provider), cache=cache)
