"""The argument of a skill's `execute` function. Standard library only: it is imported before every call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_ANSWER_BYTES = 4 * 1_048_576
"""Limit of a reply, which is one line of JSON; larger data belongs in artifacts."""

type Json = str | int | float | bool | list["Json"] | dict[str, "Json"] | None
type Advise = Callable[[str, dict[str, Json] | None], Json]


# A dataclass, not a Struct: the interpreter of a skill starts faster without msgspec.
@dataclass(slots=True, kw_only=True)
class SkillContext:
    """One turn of a conversation, for the skill."""

    skill: str
    context_id: str
    turn: int = 1
    """1 for the first turn."""
    inputs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Inputs of all turns, valid by the contract's schemas. A later value replaces an earlier one."""
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Facts that earlier turns stored with `remember`."""
    delegated: Mapping[str, Json] | None = None
    """Outcome of the skill that was delegated to: `skill`, `state`, `outputs`, `errors`."""
    problems: tuple[str, ...] = ()
    """Contract violations in earlier answers of this turn; the answer should fix them."""
    workspace: Path = field(default_factory=Path.cwd)
    artifacts: Path = field(default_factory=Path.cwd)
    idempotency_key: str = ""
    """The same for every attempt at this turn. Pass it to services that deduplicate requests."""
    can_advise: bool = False
    remembered: dict[str, Json] = field(default_factory=dict[str, Json])
    ask: Advise | None = None

    def remember(self, key: str, value: Json) -> None:
        """Store a fact for later turns."""
        self.remembered[key] = value

    def recall(self, key: str, default: Json = None) -> Json:
        """Return a fact of this turn or an earlier one."""
        return self.remembered.get(key, self.facts.get(key, default))

    def advise(self, prompt: str, schema: dict[str, Json] | None = None) -> Json:
        """Ask a model, and return its answer, validated against the schema and the contract; None without a model.

        Only `hybrid` and `advisor_only` skills may ask.
        """
        return self.ask(prompt, schema) if self.ask is not None else None
