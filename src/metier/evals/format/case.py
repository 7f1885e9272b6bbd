"""Cases and triggers as values: what is asked, under which circumstances, and what is demanded of the run."""

import hashlib
from typing import Literal

from pydantic import Field, JsonValue

from metier.evals.format.checks import AnyCheck
from metier.messages import Value

type TargetKind = Literal["skill", "agent", "task"]


class Commit(Value):
    """One commit of the history that a case begins with."""

    message: str
    files: dict[str, str] = Field(default_factory=dict)
    tag: str = ""


class Setup(Value):
    """What the folder of a case holds before the run."""

    files: dict[str, str] = Field(default_factory=dict)
    """Path → text."""
    git: Literal["", "init", "commit"] = ""
    """Whether the folder is a repository: with nothing in it, or with everything committed."""
    commits: tuple[Commit, ...] = ()
    """A history: one commit after the other, before the files of the case are written."""


class Budget(Value):
    """What one run of a case may take."""

    max_turns: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)
    timeout_seconds: float | None = Field(default=None, gt=0)


class EvalCase(Value):
    id: str
    name: str = ""
    prompt: str
    """What a person asks; of a task, why it is run."""
    expected_output: str = ""
    """For people, and for a judge where nothing else is demanded."""
    files: tuple[str, ...] = ()
    """Beside the cases, or in the folder of the skill: they lie in the workspace of the run under their last names."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Of a task."""
    setup: Setup = Setup()
    policy: str = ""
    """The rules of the workspace, as text of a `policy.yaml`; empty for those that the target brings."""
    profile: Literal["", "permissive", "guarded", "strict"] = ""
    approvals: Literal["approve", "deny", "wait"] = "approve"
    """What is answered when a call needs an approval: there is no person to ask."""
    provider: str = ""
    """Who answers when it is recorded or run live; empty for the one of the settings."""
    budget: Budget = Budget()
    checks: tuple[AnyCheck, ...] = ()
    line: int = 1

    @property
    def digest(self) -> str:
        """Of everything that the run is given, and nothing of what is demanded of it."""
        given = self.model_dump_json(exclude={"checks", "expected_output", "name", "line", "budget", "provider"})
        return hashlib.sha256(given.encode()).hexdigest()


class Trigger(Value):
    """A request, and whether the skill shall be chosen for it."""

    query: str
    should_trigger: bool
    file: str = ""
    line: int = 1


class EvalSet(Value):
    """The cases of one file."""

    file: str
    """As it is shown."""
    kind: TargetKind = "skill"
    target: str
    """The name of the skill, or the ID of the agent or task."""
    cases: tuple[EvalCase, ...] = ()
    triggers: tuple[Trigger, ...] = ()


class ScriptCase(Value):
    """A call of a script that a case writes down; `agent skill test` makes it."""

    script: str
    args: tuple[str, ...]
    file: str
    number: int


type Fields = dict[str, JsonValue]
