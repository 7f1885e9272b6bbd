"""Which runs a list shows, read from its address: so that a filter can be kept, sent on and gone back to. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast, get_args
from urllib.parse import urlencode

from metier.engine.orders import CHILD
from metier.errors import UsageError
from metier.events import TaskState
from metier.runtime.history.spending import parse_since
from metier.store.base import RUNNABLE, RunRow

FIELDS = ("q", "status", "agent", "model", "cost", "since", "children")
STATES: tuple[str, ...] = (*get_args(TaskState.__value__), "interrupted", "queued")
_TOKEN = re.compile(r'(-?)(status|agent|model|cost|since):("[^"]*"|\S+)|(-?)("[^"]*"|\S+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Values that a field must have one of, and values that it must not have."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def fits(self, value: str) -> bool:
        if self.wanted and not any(word == value for word in self.wanted):
            return False
        return not any(word == value for word in self.unwanted)

    def is_found(self, text: str) -> bool:
        folded = text.casefold()
        return all(word.casefold() in folded for word in self.wanted) and not any(
            word.casefold() in folded for word in self.unwanted
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    status: Words = Words()
    agent: Words = Words()
    model: Words = Words()
    text: Words = Words()
    """Words of the task or the id."""
    least_cost: float | None = None
    begun_since: datetime | None = None
    with_children: bool = False
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    """As it stood in the address."""

    @property
    def address(self) -> str:
        """The part behind the question mark."""
        return urlencode({name: value for name, value in self.given.items() if value})

    @property
    def single_status(self) -> TaskState | None:
        """Where the store itself can choose."""
        wanted = self.status.wanted
        is_plain = len(wanted) == 1 and wanted[0] in get_args(TaskState.__value__) and wanted[0] not in RUNNABLE
        return cast("TaskState", wanted[0]) if is_plain else None  # checked on the line above

    def fits(self, row: RunRow) -> bool:
        if not self.with_children and row.run_id.startswith(CHILD):
            return False
        if self.least_cost is not None and row.cost_usd < self.least_cost:
            return False
        if self.begun_since is not None and row.created_at < self.begun_since:
            return False
        agrees = self.status.fits(find_status(row)) and self.agent.fits(row.agent or "built-in")
        return agrees and self.model.fits(row.model) and self.text.is_found(f"{row.task} {row.run_id}")


def find_status(row: RunRow) -> str:
    """A run that was in progress when its process died is not in progress; one of a queue waits for a worker."""
    if row.status in RUNNABLE and not row.driver:
        return "queued" if row.queue else "interrupted"
    return row.status


def parse_filter(given: Mapping[str, str], *, now: datetime) -> RunFilter:
    """Each field may be given by itself, or within `q` as `field:value`; a minus in front excludes.

    Raises `UsageError`.
    """
    kept = {name: given[name].strip() for name in FIELDS if given.get(name, "").strip()}
    found: dict[str, list[tuple[bool, str]]] = {}
    for name in ("status", "agent", "model", "cost", "since"):
        for value in kept.get(name, "").split(","):
            if value.strip():
                found.setdefault(name, []).append((value.strip().startswith("-"), value.strip().removeprefix("-")))
    for match in _TOKEN.finditer(kept.get("q", "")):
        no_field, name, value, no_word, word = match.groups()
        if name:
            found.setdefault(name, []).append((no_field == "-", value.strip('"')))
        elif word.strip('"-'):
            found.setdefault("text", []).append((no_word == "-", word.strip('"')))
    return _build(found, kept, now=now)


def _build(found: Mapping[str, list[tuple[bool, str]]], given: Mapping[str, str], *, now: datetime) -> RunFilter:
    status = _choose(found.get("status", []))
    for word in (*status.wanted, *status.unwanted):
        if word not in STATES:
            raise UsageError(f"No run can be {word[:40]!r}", hint=f"Use one of {', '.join(STATES)}")
    cost, since = found.get("cost", []), found.get("since", [])
    return RunFilter(
        status=status,
        agent=_choose(found.get("agent", [])),
        model=_choose(found.get("model", [])),
        text=_choose(found.get("text", [])),
        least_cost=_parse_cost(cost[-1][1]) if cost else None,
        begun_since=parse_since(since[-1][1], now=now) if since else None,
        with_children=bool(given.get("children")),
        given=dict(given),
    )


def _choose(said: list[tuple[bool, str]]) -> Words:
    return Words(
        wanted=tuple(value for is_not, value in said if not is_not),
        unwanted=tuple(value for is_not, value in said if is_not),
    )


def _parse_cost(text: str) -> float:
    try:
        return float(text.lstrip(">=$"))
    except ValueError as error:
        raise UsageError(f"{text[:40]!r} is no cost", hint="Write dollars, such as 0.5") from error
