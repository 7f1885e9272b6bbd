"""A run's file changes in order, and the files' contents before a step. Pure."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.engine.entries.entry import Entry
from metier.engine.entries.step import FileChange, HooksRan, StepFinished, StepStarted, UndoFinished, UndoStarted
from metier.engine.entries.task import ChildRequested
from metier.errors import UsageError
from metier.tools.files.file_state import FileState, are_same


class FileEffect(Struct, frozen=True, kw_only=True):
    """One step, or one undo, that may have changed files."""

    name: str
    """ID of the step, prefixed with the run ID for a child run; or ID of the undo."""
    what: str
    """The called tool, or `undo`."""
    changes: tuple[FileChange, ...] = ()
    unknown: str = ""
    """Reason why its changes are unknown."""
    before: JsonValue = None
    """State recorded by its intent, if the process was killed before the result."""
    run_id: str = ""


class Restoration(Struct, frozen=True, kw_only=True):
    """One path: the state that the run left, and the state before."""

    path: str
    expected: FileState | None
    target: FileState | None


def list_effects(run_id: str, entries: Iterable[Entry], *, prefix: str = "") -> list[FileEffect | ChildRequested]:
    """List steps with an effect, undos and child runs in the order in which they started."""
    found: list[FileEffect | ChildRequested] = []
    open_steps: dict[str, int] = {}
    for entry in entries:
        match entry:
            # Steps that only read record no state.
            case StepStarted() if entry.before is not None:
                open_steps[entry.step_id] = len(found)
                found.append(
                    FileEffect(
                        name=f"{prefix}{entry.step_id}",
                        what=name_call(entry.action)[0],
                        before=entry.before,
                        run_id=run_id,
                    )
                )
            case StepFinished() if entry.step_id in open_steps:
                number = open_steps.pop(entry.step_id)
                begun = found[number]
                assert isinstance(begun, FileEffect)
                found[number] = replace(begun, changes=entry.changes, unknown=entry.changes_unknown, before=None)
            case HooksRan() if entry.changes:
                name = f"{prefix}{entry.step_id}-hook"
                found.append(FileEffect(name=name, what="hook", changes=entry.changes, run_id=run_id))
            case UndoStarted():
                found.append(FileEffect(name=entry.undo_id, what="undo", changes=entry.changes, run_id=run_id))
            case ChildRequested():
                found.append(entry)
            case _:
                pass
    return found


def find_open_undo(entries: Iterable[Entry]) -> UndoStarted | None:
    """Return an undo that was started and not finished."""
    begun: UndoStarted | None = None
    for entry in entries:
        if isinstance(entry, UndoStarted):
            begun = entry
        elif isinstance(entry, UndoFinished):
            begun = None
    return begun


def select(effects: Sequence[FileEffect], to: str) -> list[FileEffect]:
    """Select the effects from step `to` on; all if it is empty. Raises `UsageError` for a step without effect."""
    if not to:
        return list(effects)
    for number, effect in enumerate(effects):
        if effect.name == to:
            return list(effects[number:])
    known = ", ".join(effect.name for effect in effects) or "none"
    raise UsageError(f"Step {to!r} did nothing that can be undone", hint=f"Steps with an effect: {known}")


def plan_restorations(effects: Iterable[FileEffect]) -> list[Restoration]:
    """Return for each changed path its state before the first effect and after the last one."""
    first: dict[str, FileState | None] = {}
    last: dict[str, FileState | None] = {}
    for effect in effects:
        for change in effect.changes:
            # The oldest state is restored. The newest is what the file must still contain, or someone else changed it
            # since.
            first.setdefault(change.path, change.before)
            last[change.path] = change.after
    return [
        Restoration(path=path, expected=last[path], target=target)
        for path, target in first.items()
        if not are_same(last[path], target)
    ]
