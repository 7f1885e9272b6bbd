"""The filter of a run list, parsed from the URL, so that it can be saved and shared. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import cast, get_args
from urllib.parse import urlencode

from msgspec import Struct, field

from metier.decisions import TaskState
from metier.errors import UsageError
from metier.runtime.history.spending import parse_since
from metier.runtime.records.index_rows import get_shown_status
from metier.store.base import RUNNABLE, RunRow, RunSearch

FIELDS = ("q", "status", "agent", "model", "skill", "task", "cost", "since", "until", "children")
_NAMED = ("status", "agent", "model", "skill", "task", "cost", "since", "until")
_WITHOUT_DRIVER = ("interrupted", "queued", "worker_lost")
STATES: tuple[str, ...] = (*get_args(TaskState.__value__), *_WITHOUT_DRIVER)
_TOKEN = re.compile(rf'(-?)({"|".join(_NAMED)}):("[^"]*"|\S+)|(-?)("[^"]*"|\S+)')


class Words(Struct, frozen=True, kw_only=True):
    """Allowed and excluded values of a field."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()


class RunFilter(Struct, frozen=True, kw_only=True):
    search: RunSearch
    """Search conditions for the store."""
    shown: Words = Words()
    """Statuses as shown to users. The store doesn't distinguish an interrupted run from a driven one."""
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    """The parameters of the URL."""

    @property
    def address(self) -> str:
        """Return the query string of the URL."""
        return urlencode({name: value for name, value in self.given.items() if value})

    def fits(self, row: RunRow) -> bool:
        status = get_shown_status(row)
        return (not self.shown.wanted or status in self.shown.wanted) and status not in self.shown.unwanted


def parse_filter(given: Mapping[str, str], *, now: datetime) -> RunFilter:
    """Parse the filter. A field is a parameter, or part of `q` as `field:value`; a leading minus excludes.

    Raises `UsageError`.
    """
    fields = {name: given[name].strip() for name in FIELDS if given.get(name, "").strip()}
    found: dict[str, list[tuple[bool, str]]] = {}
    for name in _NAMED:
        for value in fields.get(name, "").split(","):
            if value.strip():
                found.setdefault(name, []).append((value.strip().startswith("-"), value.strip().removeprefix("-")))
    for match in _TOKEN.finditer(fields.get("q", "")):
        no_field, name, value, no_word, word = match.groups()
        if name:
            found.setdefault(name, []).append((no_field == "-", value.strip('"')))
        elif word.strip('"-'):
            found.setdefault("text", []).append((no_word == "-", word.strip('"')))
    return _build(found, fields, now=now)


def _build(found: Mapping[str, list[tuple[bool, str]]], given: Mapping[str, str], *, now: datetime) -> RunFilter:
    status = _choose(found.get("status", []))
    for word in (*status.wanted, *status.unwanted):
        if word not in STATES:
            raise UsageError(f"Unknown status {word[:40]!r}", hint=f"Use one of {', '.join(STATES)}")
    agent, model, skill = (_choose(found.get(name, [])) for name in ("agent", "model", "skill"))
    task, text = _choose(found.get("task", [])), _choose(found.get("text", []))
    min_cost, max_cost = _parse_costs(found.get("cost", []))
    since, until = _parse_times(found, now=now)
    search = RunSearch(
        statuses=_list_stored(status.wanted),
        not_statuses=_list_excluded(status.unwanted),
        agents=_name_built_in(agent.wanted),
        not_agents=_name_built_in(agent.unwanted),
        models=model.wanted,
        not_models=model.unwanted,
        skills=skill.wanted,
        not_skills=skill.unwanted,
        tasks=task.wanted,
        not_tasks=task.unwanted,
        words=text.wanted,
        not_words=text.unwanted,
        min_cost=min_cost,
        max_cost=max_cost,
        created_since=since,
        created_before=until,
        without_children=not given.get("children"),
    )
    return RunFilter(search=search, shown=status, given=dict(given))


def _list_stored(wanted: Sequence[str]) -> tuple[TaskState, ...]:
    """Return the stored statuses that can be shown as the wanted ones; none means all."""
    known = get_args(TaskState.__value__)
    found = [state for word in wanted for state in (RUNNABLE if word in _WITHOUT_DRIVER else (word,))]
    return tuple(cast("TaskState", state) for state in dict.fromkeys(found) if state in known)  # checked here


def _list_excluded(unwanted: Sequence[str]) -> tuple[TaskState, ...]:
    """Return the statuses that the store can exclude: not those of runs that may be shown as interrupted or queued."""
    known = set(get_args(TaskState.__value__)) - set(RUNNABLE)
    return tuple(cast("TaskState", word) for word in unwanted if word in known)  # checked here


def _name_built_in(names: Sequence[str]) -> tuple[str, ...]:
    return tuple("" if name == "built-in" else name for name in names)


def _choose(terms: list[tuple[bool, str]]) -> Words:
    return Words(
        wanted=tuple(value for is_not, value in terms if not is_not),
        unwanted=tuple(value for is_not, value in terms if is_not),
    )


def _parse_costs(terms: list[tuple[bool, str]]) -> tuple[float | None, float | None]:
    """Return minimum and maximum: `0.5` and `>0.5` set the minimum, `<0.5` and `-0.5` the maximum."""
    minimum: float | None = None
    maximum: float | None = None
    for is_not, text in terms:
        value = _parse_cost(text.lstrip("<>=$"))
        if text.startswith("<") is not is_not:
            maximum = value
        else:
            minimum = value
    return minimum, maximum


def _parse_times(
    found: Mapping[str, list[tuple[bool, str]]], *, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return start and end. An excluded `since` is an `until`, and the other way round."""
    bounds: dict[str, datetime] = {}
    for name, other in (("since", "until"), ("until", "since")):
        for is_not, text in found.get(name, []):
            bounds[other if is_not else name] = parse_since(text, now=now)
    return bounds.get("since"), bounds.get("until")


def _parse_cost(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"Invalid cost {text[:40]!r}", hint="Write dollars, such as 0.5 or <0.5") from error
    if not isfinite(value):
        raise UsageError(f"Invalid cost {text[:40]!r}", hint="Write dollars, such as 0.5 or <0.5")
    return value
