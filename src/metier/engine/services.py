"""Everything outside of a run that it uses: store, model, tools, clock and settings. Built once by the runtime."""

from collections.abc import Callable, Mapping, Sequence
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
from metier.engine.delegation import Partners
from metier.engine.entries.run import RunWorktree
from metier.engine.entries.skill import SkillsRanked
from metier.engine.nearby_instructions import Nearby
from metier.engine.options import RuntimeOptions
from metier.engine.skill_index import SkillIndex
from metier.engine.turn_cache import TurnCache
from metier.events.payload import Payload
from metier.ids import Clock, Ids
from metier.messages import Message, ToolSpec
from metier.providers.base import Observer, Provider, Seams
from metier.providers.facts import FactBook
from metier.providers.feature_support import FeatureMemory, FeatureSupport
from metier.providers.options import ModelOptions
from metier.providers.retry import Candidate
from metier.skills.options import SkillsOptions
from metier.store.base import Store
from metier.store.machine import MachineIdentity, identify_machine
from metier.tools.buffers import Buffers, NoBuffers
from metier.tools.files.snapshots import Changed
from metier.tools.hook_definitions import HookCommand
from metier.tools.hook_process import HookRun
from metier.tools.process.sandbox.protected_paths import ProtectedState
from metier.tools.toolbox import Toolbox


class WorkspaceSnapshots(Protocol):
    """Takes snapshots of the workspace; `tools.files.snapshots.Snapshots` implements it."""

    def take(self) -> str: ...

    def compare(self, before: str, after: str) -> list[Changed]: ...


class Worktrees(Protocol):
    """Reads the changes of runs in their own worktree."""

    async def read(self, run_id: str, tree: RunWorktree) -> bytes:
        """Return a patch for `git apply`, empty if nothing changed. Raises `Unavailable`."""
        ...


class HookRunner(Protocol):
    """Runs hooks; `tools.hook_process.HookRunner` implements it."""

    async def run(self, hook: HookCommand, data: Mapping[str, JsonValue]) -> HookRun: ...


class UserMessage(Struct, frozen=True, kw_only=True):
    """A message that the user sent while the run is working."""

    message_id: str
    text: str
    sent_by: str = ""


class MessageInbox(Protocol):
    """Messages for a run that is working."""

    def list_pending(self) -> Sequence[UserMessage]:
        """List messages for the next model request, in the order in which they were sent."""
        ...

    async def mark_taken(self, message_ids: Sequence[str]) -> None:
        """Remove messages that are in the journal."""
        ...


class LayerSource(Struct, frozen=True, kw_only=True):
    """Source of a layer's text."""

    file: str
    """Path, relative if inside of the workspace."""
    sha256: str
    """Hash of the whole file."""
    left_out: int = 0
    """Number of characters beyond the layer's limit."""


class Instructions(Struct, frozen=True, kw_only=True):
    """The prompt layers that stay the same for the whole run."""

    base: str
    """The workspace's own prompt; empty if it has none."""
    safety: str
    operating: str = ""
    """Operating instructions; runs of older versions have them in `base`."""
    control: tuple[ToolSpec, ...] = ()
    """Control tools as the run's model sees them."""
    soul: str = ""
    profile: str = ""
    agent: str = ""
    plugins: str = ""
    project: str = ""
    project_files: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Path of each file of project instructions → hash of its bytes and of its imports."""
    facts: str = ""
    """Facts stored in the same context."""
    summary: str = ""
    """Summary of the context's messages before `conversation`."""
    conversation: tuple[Message, ...] = ()
    """Earlier messages in the same context."""
    step: str = ""
    """Step of a structured task that this run carries out."""
    sources: Mapping[str, LayerSource] = msgspec.field(default_factory=dict[str, LayerSource])
    """Sources by layer. A layer without one is built in, or part of the request."""

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
    skill_index: SkillIndex
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
    """The machine on which effects happen; recorded in intents."""
    redact: Callable[[str], str]
    """Removes secrets and control characters from text; the engine calls it in `engine.redaction`."""
    redact_body: Callable[[JsonValue], JsonValue] | None = None
    """Does the same to a whole request or reply; None if these are not stored."""
    find_new_denial: Callable[[ActionStep], str] = lambda _: ""
    """Returns why a rule that was added after the start denies a call; empty if none does."""
    recall_ranking: Callable[[], SkillsRanked | None] = lambda: None
    """Returns the recorded ranking in a replay; None to compute it."""
    changed: tuple[str, ...] = ()
    """IDs of definitions that changed since the run started; it uses the pinned ones."""
    sandbox: str = "none"
    """Sandbox level of programs that tools start: `full`, `kernel` or `none`."""
    reading_sandbox: ReadingLevel = "none"
    """Sandbox level of commands that run without a question."""
    protected: ProtectedState | None = None
    """Checks the files that confined programs must not change; None without a sandbox."""
    snapshots: WorkspaceSnapshots | None = None
    """Takes snapshots around programs, so that their changes can be undone; None if no program runs."""
    worktrees: Worktrees | None = None
    """Reads changes of runs in worktrees; None in a replay."""
    hooks: HookRunner | None = None
    """Runs the user's hooks; None if no program runs."""
    nearby: Nearby | None = None
    """Finds project instructions of folders that the run visits; None in a replay."""
    notices: tuple[Payload, ...] = ()
    """Events to emit before the run continues, such as a server without tools."""
    not_listed: tuple[str, ...] = ()
    """External servers whose tools have not been listed yet."""
    owner: str
    """Name of this driver, for a process that finds the lease taken."""
    observe: Observer | None = None
    inbox: MessageInbox | None = None
    show_output: Callable[[str, str, bytes], None] | None = None
    """Receives step id, stream and bytes of a program that a step runs; None without observers."""
    buffers: Buffers = msgspec.field(default_factory=NoBuffers)
    """Open files in the user's editor."""
    fallbacks: tuple[Candidate, ...] = ()
    features: FeatureSupport = msgspec.field(default_factory=FeatureMemory)
    """Known unsupported features of the endpoint of `provider`."""
    enforces_schema: bool = False
    """True if the endpoint is the vendor's own: it accepts a result schema together with tools."""
    seams: Seams = msgspec.field(default_factory=Seams)
    counter: TokenCounter = msgspec.field(default_factory=TokenCounter)
    cache: TurnCache = msgspec.field(default_factory=TurnCache)
    read_access: Callable[[], frozenset[str]] = frozenset
    """Returns the tools that are disabled now. Raises `ConfigError`.

    Called in every turn, so that a tool can be turned off while the run works.
    """
    partners: Partners = msgspec.field(default_factory=Partners)
    """Targets that the run may delegate to."""
    task: TaskDefinition | None = None
    """The pinned definition that plans the run."""
    given_results: str = ""
    """Digest of the results of a task's earlier steps."""


def use_model(services: Services, options: ModelOptions, *, provider: str) -> Services:
    """Return the services for another model, without the caches for the previous one."""
    cache = replace(services.cache, offers={}, prompts=PromptMemory())
    return replace(services, model=options, counter=TokenCounter(provider), cache=cache)
