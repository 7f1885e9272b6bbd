"""What the `execute` function of a skill is given. For the skill's own process: standard library only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_ANSWER_BYTES = 4 * 1_048_576
"""As one line of JSON; more belongs into files."""

type Json = str | int | float | bool | list["Json"] | dict[str, "Json"] | None
type Advise = Callable[[str, dict[str, Json] | None], Json]


@dataclass(slots=True, kw_only=True)
class SkillContext:
    """One turn of a conversation, seen from the skill."""

    skill: str
    context_id: str
    turn: int = 1
    """1 for the first; a turn after a pause has everything that was given so far in `inputs`."""
    inputs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Valid by the contract's schemas; of all turns together, the last answer to a question winning."""
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """What earlier turns remembered."""
    delegated: Mapping[str, Json] | None = None
    """How the skill that was delegated to ended: `skill`, `state`, `outputs`, `errors`."""
    problems: tuple[str, ...] = ()
    """What was wrong with the answer to this very turn; not empty when it is asked to do better."""
    workspace: Path = field(default_factory=Path.cwd)
    artifacts: Path = field(default_factory=Path.cwd)
    idempotency_key: str = ""
    """The same when a turn is repeated after a crash: hand it to services that can recognise a repetition."""
    can_advise: bool = False
    remembered: dict[str, Json] = field(default_factory=dict[str, Json])
    ask: Advise | None = None

    def remember(self, key: str, value: Json) -> None:
        """Keep a fact for the next turn."""
        self.remembered[key] = value

    def recall(self, key: str, default: Json = None) -> Json:
        """A fact of this turn or an earlier one."""
        return self.remembered.get(key, self.facts.get(key, default))

    def advise(self, prompt: str, schema: dict[str, Json] | None = None) -> Json:
        """What a model says to a question, checked against the schema and the contract; None where there is no model.

        Only `hybrid` and `advisor_only` skills may ask. Do without where you can: the answer is advice.
        """
        return self.ask(prompt, schema) if self.ask is not None else None
