"""An agent: who does the work. `AGENT.md` with its model, lists and rules; nothing here starts one."""

from dataclasses import field
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.nearest import hint_nearest
from metier.definitions.permits import Permits, read_permits
from metier.definitions.problems import Problem, has_errors
from metier.definitions.profile import PROFILES, Profile
from metier.definitions.references import Reference, read_references
from metier.definitions.text.document import Document, load_document, parse_document, read_free_form, require_text
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Node, Plain
from metier.definitions.web_lists import WebLists, read_web_lists

FILE_NAME = "AGENT.md"

KEYS = (
    "name",
    "description",
    "metadata",
    "model",
    "allowed_models",
    "temperature",
    "max_tokens",
    "tools",
    "tool_approvals",
    "skills",
    "tasks",
    "task_approvals",
    "profile",
    "web",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    id: str
    """The folder's path under `agents/`, e.g. `foo/bar`."""
    name: str
    file: Path
    body: str
    body_line: int = 1
    description: str = ""
    metadata: dict[str, Plain] = field(default_factory=dict[str, Plain])
    model: str | None = None
    """`None` takes the model of the settings."""
    allowed_models: tuple[str, ...] = ()
    """Further models that may be chosen for this agent."""
    temperature: float | None = None
    max_tokens: int | None = None
    tools: tuple[str, ...] | None = None
    """`None`, like `inherit`, takes what the host offers; see `inherit.resolve_list`."""
    skills: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    tool_approvals: Node | None = None
    """As written, with lines; the approval room gives it a meaning."""
    task_approvals: Node | None = None
    profile: Profile | None = None
    """`None` is `guarded`."""
    web: WebLists = field(default_factory=WebLists)


@dataclass(frozen=True, slots=True)
class AgentReading:
    agent: AgentDefinition | None
    """Nothing when one of the problems is an error."""
    problems: tuple[Problem, ...] = ()
    references: tuple[Reference, ...] = ()
    """What it names, also where the definition is nothing."""
    permits: tuple[Permits, ...] = ()
    """What it says on what may be used, likewise."""


def load_agent(file: Path, *, id: str = "", within: Path | None = None) -> AgentReading:  # noqa: A002 - the word of the format
    """Read an `AGENT.md`. Unknown keys and wrong values are errors, all of them reported."""
    return _read_agent(load_document(file, within=within), file=file, id=id or file.parent.name)


def parse_agent(data: bytes, *, file: Path, id: str) -> AgentReading:  # noqa: A002 - the word of the format
    """The same from bytes, such as those that a run is pinned to."""
    return _read_agent(parse_document(data, file=file), file=file, id=id)


def _read_agent(document: Document, *, file: Path, id: str) -> AgentReading:  # noqa: A002 - the word of the format
    fields = document.fields
    if fields.is_unreadable:
        return AgentReading(None, tuple(fields.problems))
    fields.check_keys(KEYS)
    max_tokens = fields.number("max_tokens", low=1, high=10_000_000)
    agent = AgentDefinition(
        id=id,
        name=require_text(fields, "name"),
        file=file,
        body=document.body,
        body_line=document.body_line,
        description=fields.text("description") or "",
        metadata=read_free_form(fields, "metadata"),
        model=_read_model(fields),
        allowed_models=fields.texts("allowed_models") or (),
        temperature=fields.number("temperature", low=0, high=2),
        max_tokens=None if max_tokens is None else int(max_tokens),
        tools=fields.texts("tools"),
        skills=fields.texts("skills"),
        tasks=fields.texts("tasks"),
        tool_approvals=fields.node("tool_approvals"),
        task_approvals=fields.node("task_approvals"),
        profile=_read_profile(fields),
        web=read_web_lists(fields),
    )
    found = None if has_errors(fields.problems) else agent
    return AgentReading(found, tuple(fields.problems), read_references(fields), read_permits(fields))


def _read_profile(fields: Fields) -> Profile | None:
    entry = fields.find("profile")
    if entry is None:
        return None
    written = fields.text("profile") or ""
    for profile in PROFILES:
        if profile == written:
            return profile
    hint = hint_nearest(written, PROFILES) or f"One of {', '.join(PROFILES)}"
    fields.report("error", "unknown_profile", f"Profile {written!r} does not exist", line=entry.line, hint=hint)
    return None


def _read_model(fields: Fields) -> str | None:
    name = fields.text("model")
    if name is not None and not any(character.isalpha() for character in name):
        message = f"Field 'model' is {name!r}, which cannot be the name of a model"
        hint = "Write the name as the provider has it, for example 'claude-sonnet-4-5'"
        fields.report("error", "not_a_model", message, line=fields.line_of("model"), hint=hint)
    return name
