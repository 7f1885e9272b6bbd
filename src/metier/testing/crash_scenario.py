"""A scenario of the crash kit: a task with its model, tools, skills and the user's answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import JsonValue

from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.store.backend import DATABASE
from metier.store.base import Store
from metier.store.machine import Machine
from metier.store.sqlite.store import open_sqlite_store
from metier.testing.crash_points import PointedStore, Points, build_connection_class

type Reach = Callable[[str], None]
type DoubtAnswer = Literal["done", "retry", "skip", "abort"]


class OpenStore(Protocol):
    """Opens the store in each process. Wrap it in `PointedStore` to add points."""

    def __call__(self, host: Host, points: Points, *, machine: Machine | None) -> Awaitable[Store]: ...


async def open_pointed_sqlite(host: Host, points: Points, *, machine: Machine | None) -> Store:
    """Open SQLite with points before and after each change and inside each transaction."""
    store = await open_sqlite_store(
        host.runs / DATABASE, clock=host.clock, machine=machine, connection_class=build_connection_class(points)
    )
    return PointedStore(store, points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    host: Host
    """The provider must derive its reply from the request alone, because another process may send it after a kill."""
    task: str
    build_request: Callable[[Host], RunRequest] | None = None
    """Builds the request of a task definition; overrides `task`."""
    effects: Path
    """File of recorded effects, one JSON line each with `effect`, `name` and `key`. See `record_effect`."""
    settle: Callable[[str], DoubtAnswer]
    """Resolves an interrupted step by its idempotency key, like a user who checks the effects."""
    extra_context: str = ""
    """The run's extra context, such as piped input."""
    answer: Callable[[str], dict[str, JsonValue]] = lambda _question: {}
    """Answers a question."""
    artifacts: tuple[Path, ...] = ()
    """Files that must have the same bytes as after a run without a kill."""
    open_store: OpenStore = open_pointed_sqlite
    apart: bool = False
    """True to give each process its own workspace, like machines of a fleet that only share the store."""
    open_runtime: Callable[[Host, Store], Runtime] = Runtime


type Build = Callable[[Path, Reach], Scenario]
"""Builds the scenario in a folder that is empty or was used by an earlier process. Call `reach` at your own points."""
