"""Project instructions of a folder, given to the model when a step first uses a file in it.

They are appended to the result of that step. The rest of the prompt stays the same, so the provider's prompt cache
remains valid, and a replay finds them in the recorded result.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from metier.approval.judge import name_call
from metier.context.outside_text import render_nearby
from metier.definitions.project_files import ProjectFile
from metier.engine.entries.step import StepFinished
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step
from metier.events.model import InstructionFile, ProjectInstructionsLoaded
from metier.events.payload import Payload

PATH_TOOLS = frozenset({"Read", "Write", "Edit", "Glob", "Grep"})
"""Tools whose `path` argument shows which folder the model works in."""


class Nearby(Protocol):
    def find(self, path: str) -> tuple[ProjectFile, ...]:
        """Return the instructions of the folders between the workspace and this path, nearest last."""
        ...


class EventTarget(Protocol):
    """The run's position and its event sink; implemented by `RunLog`."""

    @property
    def state(self) -> RunState: ...

    def emit(self, payload: Payload) -> None: ...


def add_nearby(
    finished: Sequence[StepFinished], steps: Sequence[Step], log: EventTarget, *, nearby: Nearby | None
) -> list[StepFinished]:
    """Return the results with new project instructions for their paths."""
    if nearby is None:
        return list(finished)
    # A copy: the state only changes when the result is recorded.
    known = dict(log.state.told_nearby)
    by_id = {step.step_id: step for step in steps}
    return [_add(each, by_id[each.step_id], log, nearby=nearby, known=known) for each in finished]


def describe_files(files: Sequence[ProjectFile], *, step_id: str = "") -> ProjectInstructionsLoaded:
    return ProjectInstructionsLoaded(
        files=tuple(
            InstructionFile(
                path=file.path,
                sha256=file.sha256,
                imports=file.imports,
                left_out_characters=file.left_out,
                trusted=file.is_own,
            )
            for file in files
        ),
        step_id=step_id,
        problems=tuple(problem.render() for file in files for problem in file.problems),
    )


def _add(
    finished: StepFinished, step: Step, log: EventTarget, *, nearby: Nearby, known: dict[str, str]
) -> StepFinished:
    name, arguments = name_call(step.action)
    path = arguments.get("path")
    if name not in PATH_TOOLS or not isinstance(path, str) or finished.is_error:
        return finished
    new = [file for file in nearby.find(path) if known.get(file.path) != file.sha256]
    if not new:
        return finished
    known |= {file.path: file.sha256 for file in new}
    log.emit(describe_files(new, step_id=step.step_id))
    text = render_nearby(new)
    return replace(
        finished,
        text=f"{finished.text}\n\n{text}" if text else finished.text,
        nearby={file.path: file.sha256 for file in new},
    )
