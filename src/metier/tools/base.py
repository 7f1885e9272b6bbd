"""The interface of tools: name, schema, risk and execution. No tool is defined here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Struct
from pydantic import JsonValue

from metier.decisions import CalledRun
from metier.events.payload import Payload
from metier.messages import Spent
from metier.tools.buffers import Buffers, NoBuffers
from metier.tools.effects import Effect, Risk

type Category = Literal["read", "write", "edit", "glob", "grep", "bash", "web", "custom"]

type Schema = dict[str, JsonValue]
"""A JSON Schema object."""

STARTED = ".started"
"""Suffix of the note next to `ToolContext.spool` that marks the start of an effect."""

ANY_OUTPUT: Schema = {}
"""The schema that any value satisfies."""


# A dataclass, not a Struct: pydantic stores it in the pins of runs and in the acceptance of a server.
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInfo:
    """The description of a tool."""

    id: str
    """Unique over all sources, e.g. `builtin:Read` or `skill:notes.search`."""
    name: str
    """Name for the model and for rules."""
    description: str
    category: Category
    input_schema: Schema
    output_schema: Schema = field(default_factory=lambda: ANY_OUTPUT)
    risk: Risk
    effect: Effect
    aliases: tuple[str, ...] = ()
    spools: bool = False
    """The tool writes a note next to `ToolContext.spool` before its effect: without one, the effect did not start."""
    is_claim: bool = False
    """Risk and effect are claims of the tool or its server. They may sort tools, but never skip a question."""


def _ignore(_payload: Payload) -> None:
    return None


def _drop_text(_text: str) -> None:
    return None


class PathGuard(Protocol):
    """Applies the rules to the real path of an open file: a link has a different name than its target."""

    def check(self, path: str, *, key: str = "path") -> None:
        """Check the real path of an argument before it is read or written. Raises `ToolFailed` if it is denied."""
        ...

    def hides(self, path: str, *, key: str = "path") -> bool:
        """Return True if a rule denies the call for this file, so that neither name nor content may be shown."""
        ...


class NoGuard:
    """Allows every path."""

    def check(self, path: str, *, key: str = "path") -> None:
        del path, key

    def hides(self, path: str, *, key: str = "path") -> bool:
        del path, key
        return False


type ShowOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Receives the output of a program while it runs, as it is read. For display only; it must not block."""


class ToolContext(Struct, frozen=True, kw_only=True):
    """The context of a call."""

    workspace: Path
    run_id: str = ""
    step_id: str = ""
    idempotency_key: str = ""
    """Stays the same when the step is repeated; a `keyed` tool passes it on."""
    timeout_seconds: float | None = None
    """Remaining time of the run; a tool uses this or its own limit, whichever is shorter."""
    emit: Callable[[Payload], None] = _ignore
    """Receives the tool's events."""
    keep_partial: Callable[[str], None] = _drop_text
    """Receives the output so far of a call that is interrupted, before the cancellation continues."""
    show_output: ShowOutput | None = None
    """Receives the output of the call's program while it runs; None without observers."""
    spool: Path | None = None
    """File in which the supervisor of a child process records its start and end, even if the agent dies."""
    attempt: int = 1
    """Number of intended starts of the call. A repetition after a crash is the same attempt."""
    answers: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """The user's answers to this call's questions so far."""
    artifacts: Path | None = None
    """Folder for files that belong to the run."""
    clean: Callable[[str], str] = str
    """Redacts secrets in outside text, before it is written anywhere."""
    trace_parent: str = ""
    """The W3C `traceparent` of the step, for its processes and requests; empty if tracing is off."""
    base_hash: str | None = None
    """`Preview.base` of the change that a user approved. The call fails if the file's state is another one."""
    paths: PathGuard = msgspec.field(default_factory=NoGuard)
    """Checks the real paths of the files that a tool opens."""
    buffers: Buffers = msgspec.field(default_factory=NoBuffers)
    """The user's unsaved files, for tools that read or change one."""
    read_only: bool = False
    """No user approved the call: a program that it starts must run in the read-only sandbox, or not at all."""

    def limit_seconds(self, seconds: float) -> float:
        """Return the tool's own time limit, or the remaining time of the run if that is shorter."""
        return seconds if self.timeout_seconds is None else min(seconds, self.timeout_seconds)


class Question(Struct, frozen=True, kw_only=True):
    """A question that a tool needs answered; the call is repeated with the answer."""

    text: str
    fields: JsonValue = None
    """A JSON Schema of the answer."""


# A dataclass, not a Struct: its `repr` must not have the data.
@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """An image or a document in a format that model providers accept; see `tools.media`."""

    data: bytes = field(repr=False)
    media_type: str
    name: str = ""
    width: int = 0
    height: int = 0
    pages: int = 0


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of a call. A failure is a result too: the model reads `error` and continues."""

    ok: bool
    output: JsonValue = None
    error: str = ""
    """One sentence for the model; empty when `ok`."""
    meta: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """For records, not for the model: durations, sizes, the error's code."""
    question: Question | None = None
    """Not a result yet: the run waits for an answer, then repeats the call."""
    handed_on: CalledRun | None = None
    """Not a result yet: another run has to finish first, then the call is repeated."""
    wants_write: str = ""
    """Not a result yet: the call needs more than the read-only sandbox allows. Says why, for the user who is asked."""
    spent: Spent | None = None
    """Cost of the call's own model requests."""
    media: tuple[Media, ...] = ()
    """Media for the model in addition to `output`."""
    is_limited: bool = False
    """The tool applied its own documented size limit, so the general limit for results does not apply."""

    @property
    def is_final(self) -> bool:
        return self.question is None and self.handed_on is None and not self.wants_write


class Tool(Protocol):
    """An action that a model may ask for. `execute` gets arguments that satisfy the input schema."""

    @property
    def info(self) -> ToolInfo: ...

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult: ...


NO_CHANGE = "The file already has this content, so nothing changes"


class Preview(Struct, frozen=True):
    """The expected change of a call, for the approver."""

    text: str
    """A diff, or a sentence."""
    base: str = ""
    """A hash of the state that it was built from. If that has changed when the call runs, the user is asked again."""
    failure: ToolResult | None = None
    """The call's result, if it is already known to fail."""


@runtime_checkable
class Previewing(Protocol):
    """A tool that can show the effect of a call without performing it."""

    async def preview(self, arguments: dict[str, JsonValue], context: ToolContext) -> Preview | None: ...


@runtime_checkable
class Locating(Protocol):
    """A file tool that can resolve the paths of a call."""

    async def locate(self, arguments: dict[str, JsonValue]) -> dict[str, str]:
        """Return the real path of each path argument. Raises `ToolFailed` as the call would."""
        ...


@runtime_checkable
class Refusing(Protocol):
    """A tool that can reject a call by its arguments alone, before an approval is requested."""

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """Return the reason as a sentence; empty if the call would run. Pure."""
        ...


@runtime_checkable
class Probing(Protocol):
    """A tool that can find out, after a crash, whether a call had its effect."""

    async def probe(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult | None:
        """Return the result if the effect happened, a failed result if not (the call then runs), None if unknown.

        Runs in another process than the call, after that one has ended.
        """
        ...
