"""Errors as RFC 9457 problems, with the same code, message and hint as on the command line."""

import re
from typing import Annotated

from pydantic import ConfigDict, Field
from starlette.responses import Response

from metier.errors import (
    ApprovalClosed,
    ConfigError,
    FilesChanged,
    LogError,
    MetierError,
    ProviderError,
    SandboxUnavailable,
    SkillNotFound,
    SkillNotTrusted,
    UsageError,
)
from metier.store.failures import (
    ApprovalUnknown,
    BlobUnknown,
    ClaimLost,
    DuplicateMessageError,
    LeaseHeld,
    LeaseLost,
    ResumeTokenRefused,
    RunExists,
    RunUnknown,
    SeqTaken,
    StoreDamaged,
    StoreError,
    StoreFull,
    VersionConflictError,
)
from metier.telemetry.redaction import Redactor
from metier.telemetry.sanitize import sanitize
from metier.values import Value

MEDIA_TYPE = "application/problem+json"

_STATUS: tuple[tuple[type[MetierError], int], ...] = (
    # Subclasses stand before their base classes, such as `StoreFull` before `StoreError`.
    (RunUnknown, 404),
    (ApprovalUnknown, 404),
    (SkillNotFound, 404),
    (BlobUnknown, 404),
    (ApprovalClosed, 409),
    (FilesChanged, 409),
    (LeaseHeld, 409),
    (LeaseLost, 409),
    (SeqTaken, 409),
    (RunExists, 409),
    (VersionConflictError, 409),
    (DuplicateMessageError, 409),
    (ClaimLost, 409),
    (ResumeTokenRefused, 409),
    (SkillNotTrusted, 403),
    (ConfigError, 422),
    (UsageError, 400),
    (ProviderError, 502),
    (SandboxUnavailable, 503),
    (StoreFull, 507),
    (StoreDamaged, 500),
    (StoreError, 503),
    (LogError, 500),
)
"""The first match counts. All other errors are 422."""


class HttpProblem(MetierError):
    """An error of the request itself, without a counterpart on the command line."""

    def __init__(self, status: int, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


class ProblemDocument(Value):
    """An RFC 9457 problem with a hint."""

    # FastAPI reads the schema before anything is validated.
    model_config = ConfigDict(defer_build=False)

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: Annotated[str, Field(description="Stable name of the error in snake case.")]
    hint: Annotated[str, Field(description="How to fix it; may be empty.")] = ""
    exit_code: Annotated[int, Field(description="Exit code of the command line for this error.")] = 1
    problems: Annotated[tuple[str, ...], Field(description="All problems of the settings or definitions.")] = ()


def get_status(error: MetierError) -> int:
    if isinstance(error, HttpProblem):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 422)


def get_code(error: MetierError) -> str:
    """Return the error's own code, or its class name in snake case: `RunUnknown` is `run_unknown`."""
    own: object = getattr(error, "code", "")
    return str(own) if own else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


def describe_problem(error: MetierError, redactor: Redactor) -> ProblemDocument:
    def clean(text: str) -> str:
        return redactor.redact(sanitize(text))

    problems = tuple(clean(each.render()) for each in error.problems) if isinstance(error, ConfigError) else ()
    return ProblemDocument(
        title=get_code(error).replace("_", " ").capitalize(),
        status=get_status(error),
        detail=clean(error.message),
        code=get_code(error),
        hint=clean(error.hint),
        exit_code=error.exit_code,
        problems=problems,
    )


def render_problem(problem: ProblemDocument, *, headers: dict[str, str] | None = None) -> Response:
    return Response(problem.model_dump_json(), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers or {})
