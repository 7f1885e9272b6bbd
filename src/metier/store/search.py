"""Which runs of the index are wanted: by status, agent, model, skill, task, words, cost and time. Values only."""

from datetime import datetime

from metier.dataclass import dataclass
from metier.task_state import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSearch:
    """Everything that is given must hold; of several values of one field, one must. Empty means no condition."""

    statuses: tuple[TaskState, ...] = ()
    not_statuses: tuple[TaskState, ...] = ()
    agents: tuple[str, ...] = ()
    not_agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    not_skills: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """IDs of task definitions."""
    not_tasks: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Each must stand in the text of the task or in the id, in whatever case."""
    not_words: tuple[str, ...] = ()
    least_cost: float | None = None
    most_cost: float | None = None
    begun_since: datetime | None = None
    begun_before: datetime | None = None
    without_children: bool = False
    """Leave out runs that another run ordered."""


FIELDS: tuple[tuple[str, str], ...] = (
    ("status", "statuses"),
    ("agent", "agents"),
    ("model", "models"),
    ("skill", "skills"),
    ("task_id", "tasks"),
)
"""Columns that are compared whole, and the attributes that name what is wanted of them."""


def quote_like(word: str) -> str:
    """A pattern for `LIKE … ESCAPE '!'` that finds the word wherever it stands."""
    escaped = word.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"
