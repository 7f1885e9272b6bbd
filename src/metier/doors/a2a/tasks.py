"""Runs as A2A tasks, for the SDK. A projection; it reads nothing and changes nothing."""

from collections.abc import Callable

from a2a.types.a2a_pb2 import Task, TaskState
from google.protobuf.json_format import ParseDict

from metier.dataclass import dataclass
from metier.doors.a2a.identity import Caller
from metier.engine.state import RunState
from metier.runtime.notify import task_json
from metier.runtime.notify.task_json import PREFIX, Standing, find_standing
from metier.store.base import RunRow

_STATES: dict[str, int] = {name.removeprefix(PREFIX): value for name, value in TaskState.items()}
TERMINAL = frozenset(_STATES[name] for name in task_json.TERMINAL)
RESTING = frozenset(_STATES[name] for name in task_json.RESTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """What a task is built from."""

    row: RunRow
    state: RunState
    waiting: RunState
    """The run that is really waited for: this one, or one that it delegated to."""

    @property
    def standing(self) -> Standing:
        return find_standing(self.state, self.waiting, at=self.row.updated_at)


def find_task_state(view: TaskView) -> int:
    return _STATES[view.standing.state]


def build_task(view: TaskView, caller: Caller, *, clean: Callable[[str], str]) -> Task:
    return ParseDict(
        task_json.build_task(view.row, view.standing, base_url=caller.base_url, clean=clean),
        Task(),
    )
