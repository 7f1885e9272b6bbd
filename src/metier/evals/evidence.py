"""Evidence of a run, read from its journal: the only input of checks. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.decisions import get_owner
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import DecisionMade, ModelReplied
from metier.engine.entries.run import RunFailed, RunFinished
from metier.engine.entries.step import StepFinished, StepStarted
from metier.engine.state.fold import fold
from metier.runtime.history.archive import Archive
from metier.runtime.status import exit_code
from metier.tools.files.file_state import FileState

type Content = Callable[[], bytes | None]
"""Returns the bytes of a file; None if they are not stored."""


class Call(Struct, frozen=True, kw_only=True):
    """A tool call with its result."""

    tool: str
    arguments: dict[str, JsonValue]
    status: str = ""
    exit_code: int | None = None
    is_denied: bool = False
    text: str = ""


class Evidence(Struct, frozen=True, kw_only=True):
    run_id: str
    result: str
    """Result, or the reason why there is none."""
    status: str
    exit_code: int
    calls: tuple[Call, ...] = ()
    skills: tuple[str, ...] = ()
    """Skills that were used or whose code ran, in order."""
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    duration_seconds: float = 0.0
    files: Mapping[str, Content] = field(default_factory=dict[str, Content])
    """Files after the run, by path in the workspace."""
    denials: tuple[str, ...] = ()
    provider: str = ""
    model: str = ""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def read(self, path: str) -> str | None:
        """Return the text of a file that the run left."""
        content = self.files.get(path.removeprefix("./"))
        data = content() if content is not None else None
        return None if data is None else data.decode("utf-8", "replace")


def build_evidence(archive: Archive, *, given: Mapping[str, Content]) -> Evidence:
    """Collect the evidence. `given` are the initial files."""
    state = archive.fold()
    runs = [archive, *archive.children]
    calls = tuple(
        replace(call, arguments=_shorten(call.arguments, each.started.workspace))
        for each in runs
        for call in list_calls(each.entries)
    )
    started = archive.started
    return Evidence(
        run_id=archive.run_id,
        result=state.result or (state.failure.message if state.failure is not None else ""),
        status=state.status,
        exit_code=exit_code(state),
        calls=calls,
        skills=_list_skills(runs),
        turns=state.turn + sum(child.fold().turn for child in archive.children),
        input_tokens=state.input_tokens,
        output_tokens=state.output_tokens,
        cost_usd=state.cost_usd,
        duration_seconds=_compute_duration(archive.entries),
        files=_get_files(runs, given),
        denials=tuple(f"{call.tool}: {call.text}" for call in calls if call.is_denied),
        provider=started.provider,
        model=started.model,
    )


def list_calls(entries: Sequence[Entry]) -> list[Call]:
    """Return every call in order, including rejected ones."""
    started: dict[str, tuple[str, dict[str, JsonValue]]] = {}
    found: list[Call] = []
    for number, entry in enumerate(entries):
        match entry:
            case DecisionMade():
                found += [
                    Call(tool=each.tool, arguments={}, status="rejected", text=each.message) for each in entry.rejected
                ]
            case StepStarted():
                started[entry.step_id] = name_call(entry.action)
            case StepFinished():
                known = started.get(entry.step_id)
                # A denied call was not started, so only the decision before it describes the call.
                tool, arguments = known or _get_planned(entries[:number], entry.step_id)
                found.append(
                    Call(
                        tool=tool,
                        arguments=arguments,
                        status=entry.status,
                        exit_code=entry.exit_code,
                        is_denied=entry.status == "denied",
                        text=entry.text,
                    )
                )
            case _:
                pass
    return found


def _shorten(arguments: dict[str, JsonValue], workspace: str) -> dict[str, JsonValue]:
    """Make paths in the workspace relative, so that they don't depend on the run's folder."""
    start = workspace.rstrip("/") + "/"
    return {
        name: value.removeprefix(start) if isinstance(value, str) and value.startswith(start) else value
        for name, value in arguments.items()
    }


def _get_planned(entries: Sequence[Entry], step_id: str) -> tuple[str, dict[str, JsonValue]]:
    # A step ID is the turn and the number of the action, from 1.
    turn, _, index = step_id.partition(".")
    for entry in reversed(entries):
        if isinstance(entry, DecisionMade) and str(entry.turn) == turn and index.isdigit():
            actions = entry.decision.planned_actions
            if 0 < int(index) <= len(actions):
                return name_call(actions[int(index) - 1])
    return "", {}


def _list_skills(runs: Iterable[Archive]) -> tuple[str, ...]:
    names: list[str] = []
    for run in runs:
        names += fold(run.run_id, run.entries).used_skills
        names += [get_owner(entry.action) for entry in run.entries if isinstance(entry, StepStarted)]
    return tuple(dict.fromkeys(name for name in names if name))


def _compute_duration(entries: Sequence[Entry]) -> float:
    last = entries[-1]
    if isinstance(last, RunFinished | RunFailed):
        return last.duration_ms / 1000
    steps = sum(entry.duration_ms for entry in entries if isinstance(entry, StepFinished))
    return (steps + sum(entry.latency_ms for entry in entries if isinstance(entry, ModelReplied))) / 1000


def _get_files(runs: Sequence[Archive], given: Mapping[str, Content]) -> dict[str, Content]:
    files = dict(given)
    for run in runs:
        for entry in run.entries:
            for change in entry.changes if isinstance(entry, StepFinished) else ():
                files.pop(change.path, None)
                if change.after is not None:
                    files[change.path] = _keep(change.after, run.blobs)
    return files


def _keep(state: FileState, blobs: Mapping[str, bytes]) -> Content:
    return lambda: blobs.get(state.sha256)


def as_content(data: bytes) -> Content:
    return lambda: data


type Verdict = Literal["passed", "failed", "not_checked"]
