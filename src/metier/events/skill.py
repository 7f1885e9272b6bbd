"""Events of skills: loading, ranking, disclosure and control of the run."""

from typing import Literal

from msgspec import field

from metier.decisions import StepStatus
from metier.events.payload import Payload
from metier.values import StoredValue


class DisclosedFile(StoredValue, frozen=True, kw_only=True):
    path: str
    section: str = ""
    bytes: int
    tokens: int
    truncated: bool = False


class Candidate(StoredValue, frozen=True, kw_only=True):
    skill_name: str
    score: float
    reason: str = ""


class SkillCatalogLoaded(Payload, frozen=True, kw_only=True):
    """The catalog was loaded: the number of skills, and the failures."""

    event_type = "skill_catalog_loaded"
    skills: int
    problems: int = 0
    shadowed: tuple[str, ...] = ()
    duration_ms: float = 0.0


class SkillLoadFailed(Payload, frozen=True, kw_only=True):
    """One skill could not be loaded, with the reason."""

    event_type = "skill_load_failed"
    skill_name: str
    path: str
    code: str
    reason: str
    line: int | None = None


class SkillProblemFound(Payload, frozen=True, kw_only=True):
    """A problem of skills that prevents none from loading: a hidden or unknown name."""

    event_type = "skill_problem_found"
    skill_name: str = ""
    path: str = ""
    code: str
    reason: str
    line: int | None = None
    hint: str = ""


class SkillPrefilterCompleted(Payload, frozen=True, kw_only=True):
    """All skills were ranked for the request; these are the candidates. `strategy` is the fallback without one."""

    event_type = "skill_prefilter_completed"
    query: str
    candidates: tuple[Candidate, ...]
    considered: int
    strategy: str = ""


class SkillDisclosureLoaded(Payload, frozen=True, kw_only=True):
    """A stage of disclosure showed exactly these files to the model."""

    event_type = "skill_disclosure_loaded"
    skill_name: str
    stage: Literal[0, 1, 2, 3]
    files: tuple[DisclosedFile, ...]
    total_bytes: int
    total_tokens: int
    refused: tuple[str, ...] = ()
    """Requested paths that were not disclosed, each with the reason."""


class SkillInvocationStarted(Payload, frozen=True, kw_only=True):
    """A skill is in charge from here; `digest` is that of its pinned definition."""

    event_type = "skill_invocation_started"
    skill_name: str
    rationale: str = ""
    digest: str = ""


class SkillInvocationFinished(Payload, frozen=True, kw_only=True):
    """The skill handed control back."""

    event_type = "skill_invocation_finished"
    skill_name: str
    status: StepStatus
    summary: str = ""


class Handoff(Payload, frozen=True, kw_only=True):
    """Control passes from one skill to the next, for this reason."""

    event_type = "handoff"
    from_skill: str
    to_skill: str
    rationale: str


class EmbeddingsUnavailable(Payload, frozen=True, kw_only=True):
    """The embeddings of `routing.embeddings` could not be used, so the skills were ranked by words only."""

    event_type = "embeddings_unavailable"
    reason: str


class SkillCodeAccepted(Payload, frozen=True, kw_only=True):
    """The files of skills changed since the run started, and it continues with the new ones."""

    event_type = "skill_code_accepted"
    skills: tuple[str, ...] = ()
    code: dict[str, str] = field(default_factory=dict)
    """Pin → hash of the tree from now on."""
    accepted_by: str = ""


class SkillWithoutTools(Payload, frozen=True, kw_only=True):
    """The run has no tool while this skill is in charge: its list and the agent's have none in common."""

    event_type = "skill_without_tools"
    skill_name: str
    message: str
