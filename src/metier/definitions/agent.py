"""An agent: who does the work. `AGENT.md` with its model, lists and rules; nothing here starts one."""

import re
from pathlib import Path

from msgspec import Struct, field

from metier.definitions.names import PROFILES, Profile
from metier.definitions.nearest import hint_nearest
from metier.definitions.permits import Permits, read_permits
from metier.definitions.problems import Problem, has_errors
from metier.definitions.references import Reference, read_references
from metier.definitions.text.document import Document, load_document, parse_document, read_free_form, require_text
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Mapping, Node, Plain, Scalar, Sequence

WEB_KEYS = ("allow", "deny")
_MAX_CHARACTERS = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")

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


class WebLists(Struct, frozen=True, kw_only=True):
    """Domains, each with everything below it."""

    allow: tuple[str, ...] = ()
    """Empty: all."""
    deny: tuple[str, ...] = ()
    """Wins over `allow`."""


def read_web_lists(fields: Fields, key: str = "web") -> WebLists:
    """Every mistake is a problem with its line: a list that is half understood would allow something else."""
    entry = fields.find(key)
    if entry is None:
        return WebLists()
    if not isinstance(entry.value, Mapping):
        hint = "Write 'allow:' or 'deny:' below it, each with a list of domains"
        fields.report("error", "not_a_mapping", f"Field {key!r} must be a mapping", line=entry.line, hint=hint)
        return WebLists()
    lists = Fields(entry.value, file=fields.file, strict=True, problems=fields.problems, first_line=entry.line)
    lists.check_keys(WEB_KEYS)
    return WebLists(allow=_read_domains(lists, "allow"), deny=_read_domains(lists, "deny"))


def _read_domains(lists: Fields, key: str) -> tuple[str, ...]:
    entry = lists.find(key)
    if entry is None:
        return ()
    if isinstance(entry.value, Sequence) and not entry.value.items and key == "allow":
        message = "An empty list allows every domain"
        hint = "Leave 'allow' out, or leave 'WebFetch' out of tools"
        lists.report("error", "empty_domains", message, line=entry.line, hint=hint)
    items: tuple[Node, ...] = entry.value.items if isinstance(entry.value, Sequence) else (entry.value,)
    return tuple(domain for item in items if (domain := _read_domain(lists, item)))


def _read_domain(lists: Fields, item: Node) -> str:
    written = item.value.strip() if isinstance(item, Scalar) else ""
    domain = parse_domain(written)
    if not domain:
        hint = "Write it like 'example.com', without scheme, port, path or '*'; what is below it counts too"
        lists.report("error", "not_a_domain", f"{written!r} is not a domain", line=item.line, hint=hint)
    return domain


def parse_domain(text: str) -> str:
    """The domain in its one plain form, nothing where it is none."""
    plain = text.lower().removesuffix(".")
    try:
        plain = plain if plain.isascii() else plain.encode("idna").decode("ascii")
    except UnicodeError:
        return ""
    if len(plain) > _MAX_CHARACTERS or not all(_LABEL.fullmatch(label) for label in plain.split(".")):
        return ""
    return plain


class AgentDefinition(Struct, frozen=True, kw_only=True):
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


class AgentReading(Struct, frozen=True):
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
