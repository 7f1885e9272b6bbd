"""What the crash kit runs: a task with its model, tools and skills, and how a user would answer."""

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
    """How a process of the scenario opens the store; wrap it in `PointedStore` so that it has points."""

    def __call__(self, host: Host, points: Points, *, machine: Machine | None) -> Awaitable[Store]: ...


async def open_pointed_sqlite(host: Host, points: Points, *, machine: Machine | None) -> Store:
    """The embedded store, with points before and after each change and inside each transaction."""
    store = await open_sqlite_store(
        host.runs / DATABASE, clock=host.clock, machine=machine, connection_class=build_connection_class(points)
    )
    return PointedStore(store, points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    host: Host
    """The provider must answer from the request alone: after a kill another process asks it."""
    task: str
    build_request: Callable[[Host], RunRequest] | None = None
    """What orders the run, where it is a task definition and not the text above."""
    effects: Path
    """Where effects are counted: one JSON line each, with `effect`, `name` and `key`. See `record_effect`."""
    settle: Callable[[str], DoubtAnswer]
    """What a user would answer about the step with this idempotency key, after a look at the world."""
    extra_context: str = ""
    """What was piped in beside the task."""
    answer: Callable[[str], dict[str, JsonValue]] = lambda _question: {}
    """What a user would answer to a question."""
    artifacts: tuple[Path, ...] = ()
    """Files that must have the same bytes as after an undisturbed run."""
    open_store: OpenStore = open_pointed_sqlite
    apart: bool = False
    """Each process has a workspace of its own below the folder, as each machine of a fleet has: of what the run writes
    they share the store only."""
    open_runtime: Callable[[Host, Store], Runtime] = Runtime


type Build = Callable[[Path, Reach], Scenario]
"""Builds the scenario in an empty folder, or in one where it was built before. `reach` marks points of your own."""
