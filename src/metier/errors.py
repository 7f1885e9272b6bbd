"""Errors that Metier raises on purpose, each with a message, a hint and an exit code.

MetierError                     1   a failure that the user can act on
├── UsageError                  2   an invalid argument, file or name
│   ├── ConfigError             2   invalid settings or definitions, with all problems
│   └── InvalidName             2   a name of a skill or script that is ambiguous on disk
├── LogError                    1   the event log cannot be written or read
│   ├── LogLocked              10   another process is writing this log
│   └── LogDamaged              1   a record in the middle of the log was modified
├── SkillError                  1   a skill cannot be installed, found or used
│   ├── SkillNotFound           2   no skill of that name
│   ├── SkillNotTrusted         5   the user has not trusted these bytes
│   ├── SkillRejected           1   a package that must not be installed
│   └── NoSkillMatches          1   no skill matches the request
├── SandboxUnavailable          9   a sandbox is required and none works here
├── EmbeddingsFailed            1   no embeddings, so skills are ranked by words only
├── ToolFailed                  1   a tool failed; the model reads the error
├── ProviderError               8   a model did not answer; subclasses are in `providers/failures.py`
├── ArchiveRefused              1   a modified or unreadable export of a run
├── ApprovalClosed             10   the approval was decided before, or expired
├── FilesChanged               10   files changed since the run; an undo needs confirmation
├── BrokerUnavailable           1   the message broker of workers does not answer
├── RunFailed                   1   a run did not complete (Python API)
├── PromptTooLarge              6   required content does not fit the context budget
└── StoreError                  1   the run store cannot be used
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class MetierError(Exception):
    """A failure for users: `message` describes the problem, `hint` the fix."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def sentence(self) -> str:
        """Return message and hint as one line."""
        return f"{self.message.rstrip('. ')}. {self.hint}" if self.hint else self.message


class Located(Protocol):
    """A problem with a location, usually a `definitions.problems.Problem`."""

    def render(self) -> str: ...


class UsageError(MetierError):
    """The call is invalid: an argument, a file, a name."""

    exit_code = 2


class SandboxUnavailable(MetierError):
    """A sandbox is required, and none works on this machine."""

    exit_code = 9


class ConfigError(UsageError):
    """Invalid settings or definitions. All problems are listed, not only the first."""

    def __init__(self, message: str, *, hint: str = "", problems: Sequence[Located] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)
        for problem in self.problems:
            self.add_note(problem.render())  # shown below the message if a Python program does not catch the error


class InvalidName(UsageError):
    """A name with characters other than letters, digits, hyphens and underscores: it is ambiguous on disk."""

    code = "invalid_name"


class LogError(MetierError):
    """The event log can't be written or read."""


class LogLocked(LogError):
    """Another process is writing this log."""

    exit_code = 10


class LogDamaged(LogError):
    """A record in the middle of a log was modified."""


class SkillError(MetierError):
    """A skill can't be installed, found or used."""


class SkillNotFound(SkillError):
    """No skill of that name is known."""

    exit_code = 2


class SkillNotTrusted(SkillError):
    """The bytes of this skill were never trusted, or changed since."""

    exit_code = 5


class SkillRejected(SkillError):
    """A package that must not be installed; nothing was changed on disk."""


class NoSkillMatches(SkillError):
    """No skill matches a request, and the settings require one."""


class ToolFailed(MetierError):
    """A tool failed at its work. The toolbox turns it into a result for the model."""

    def __init__(self, message: str, *, hint: str = "", code: str = "execution_failed") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ProviderError(MetierError):
    """A model did not answer."""

    exit_code = 8


class FilesChanged(MetierError):
    """Files that an undo would restore changed since."""

    exit_code = 10


class ApprovalClosed(MetierError):
    """An approval was decided before, or has expired."""

    exit_code = 10


class BrokerUnavailable(MetierError):
    """The broker that wakes workers does not answer; the runs themselves are in the store."""


class PromptTooLarge(MetierError):
    """The required content does not fit the context budget, even without all optional content."""

    exit_code = 6


class RunFailed(MetierError):
    """A run failed, was canceled or waits, although the program needs its result."""

    def __init__(self, message: str, *, run_id: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.reason = reason


class ArchiveRefused(MetierError):
    """The file of an exported run was modified, or is not an export."""


class StoreError(MetierError):
    """The run store can't be used."""


@contextmanager
def unwrapped() -> Generator[None]:
    """Raise the first of our own errors in a group, or its first error."""
    try:
        yield
    # Task groups of anyio raise a group even for a single error, which callers could not catch by its class.
    except BaseExceptionGroup as group:
        raise _get_cause(group) from group


def _get_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaves = list(_list_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, MetierError)), leaves[0])


def _list_leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _list_leaves(error)  # pyright: ignore[reportUnknownArgumentType]  a group holds exceptions
        else:
            yield error
