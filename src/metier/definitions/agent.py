"""Agent definitions: an `AGENT.md` with the agent's model, lists and rules."""

import re
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from metier.definitions.names import Profile
from metier.definitions.problems import Problem, has_errors
from metier.definitions.reader import (
    FileModel,
    FreeForm,
    Raw,
    Text,
    Texts,
    Word,
    context_of,
    fault,
    read_model,
    within,
)
from metier.definitions.references import Permits, Reference, read_permits, read_references
from metier.definitions.text.front_matter import Document, load_document, parse_document
from metier.definitions.text.yaml_text import Mapping, Plain, Scalar, Sequence

# DNS allows 255 bytes on the wire, which leaves 253 characters in the written form.
_MAX_CHARACTERS = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")

FILE_NAME = "AGENT.md"


def _read_domains(value: object, info: ValidationInfo) -> object:
    """Read a list of domains. Any problem is an error, because an incomplete list would allow other domains."""
    if not isinstance(value, Scalar | Sequence | Mapping):
        return value
    if value == Sequence((), value.line) and info.field_name == "allow":
        hint = "Leave 'allow' out, or leave 'WebFetch' out of tools"
        raise fault("empty_domains", "An empty list allows every domain", hint)
    found: list[str] = []
    for item in value.items if isinstance(value, Sequence) else (value,):
        written = item.value.strip() if isinstance(item, Scalar) else ""
        if not (domain := parse_domain(written)):
            hint = "Write it like 'example.com', without scheme, port, path or '*'; subdomains are included"
            context_of(info).report("error", item, "not_a_domain", f"{written!r} is not a domain", hint)
        found.append(domain)
    return tuple(found)


_Domains = Annotated[tuple[str, ...], BeforeValidator(_read_domains)]


class WebLists(FileModel):
    """Allowed and denied domains, each including its subdomains."""

    shape_hint = "Write 'allow:' or 'deny:' below it, each with a list of domains"

    allow: _Domains = ()
    """If empty, all domains are allowed."""
    deny: _Domains = ()
    """Overrides `allow`."""


def parse_domain(text: str) -> str:
    """Normalize a domain. Return an empty string if it is invalid."""
    # A complete DNS name may end with a dot.
    plain = text.lower().removesuffix(".")
    try:
        # Requests name a host in this form, so both sides of a comparison are ASCII.
        plain = plain if plain.isascii() else plain.encode("idna").decode("ascii")
    except UnicodeError:
        return ""
    if len(plain) > _MAX_CHARACTERS or not all(_LABEL.fullmatch(label) for label in plain.split(".")):
        return ""
    return plain


def _check_model(name: str) -> str:
    if any(character.isalpha() for character in name):
        return name
    hint = "Write the name as the provider has it, for example 'claude-sonnet-4-5'"
    raise fault("not_a_model", f"is {name!r}, which cannot be the name of a model", hint)


class AgentFields(FileModel):
    """The front matter of an `AGENT.md`."""

    name: Annotated[Text, Field(min_length=1)]
    description: Text = ""
    metadata: FreeForm = Field(default_factory=dict[str, Plain])
    model: Annotated[Text, AfterValidator(_check_model)] | None = None
    """Defaults to the model of the settings."""
    allowed_models: Texts = ()
    """Further models that may be chosen for this agent."""
    temperature: Annotated[float, within(0, 2)] | None = None
    max_tokens: Annotated[int, within(1, 10_000_000, whole=True)] | None = None
    tools: Texts | None = None
    """Without a list or with `inherit`, the agent has the host's tools; see `references.resolve_list`."""
    tool_approvals: Raw | None = None
    """The unparsed node, which `approval` interprets."""
    skills: Texts | None = None
    tasks: Texts | None = None
    task_approvals: Raw | None = None
    profile: Word[Profile] | None = None
    """Defaults to `guarded`."""
    web: WebLists = WebLists()


class AgentDefinition(AgentFields):
    id: str
    """Path of the folder under `agents/`, e.g. `foo/bar`."""
    file: Path
    body: str
    body_line: int = 1


class AgentReading(Struct, frozen=True):
    agent: AgentDefinition | None
    """None if any problem is an error."""
    problems: tuple[Problem, ...] = ()
    references: tuple[Reference, ...] = ()
    """References of the file, even if the agent could not be loaded."""
    permits: tuple[Permits, ...] = ()
    """Permissions in the file, even if the agent could not be loaded."""


def load_agent(file: Path, *, id: str = "", within: Path | None = None) -> AgentReading:  # noqa: A002 - the word of the format
    """Load an `AGENT.md`. Unknown keys and invalid values are errors, and all of them are reported."""
    return _read_agent(load_document(file, within=within), file=file, id=id or file.parent.name)


def parse_agent(data: bytes, *, file: Path, id: str) -> AgentReading:  # noqa: A002 - the word of the format
    """Parse the bytes of an `AGENT.md`, for example the version that a run is pinned to."""
    return _read_agent(parse_document(data, file=file), file=file, id=id)


def _read_agent(document: Document, *, file: Path, id: str) -> AgentReading:  # noqa: A002 - the word of the format
    if document.is_unreadable:
        return AgentReading(None, document.problems)
    reading = read_model(AgentFields, document.root, file=document.file)
    problems = (*document.problems, *reading.problems)
    agent = None
    if reading.value is not None and not has_errors(problems):
        agent = AgentDefinition.model_construct(
            **dict(reading.value), id=id, file=file, body=document.body, body_line=document.body_line
        )
    references = read_references(document.root, file=document.file)
    return AgentReading(agent, problems, references, read_permits(document.root, file=document.file))
