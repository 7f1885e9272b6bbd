"""Write the journals of `tests/corpus`: run it as a program once per release, and keep the old ones.

Small runs that together write every kind of entry. Never change a journal in the corpus: it represents the
journals on users' disks.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
from msgspec.structs import replace
from pydantic import JsonValue
from run_scenarios import ENOUGH, answer_all, build_tools, build_workspace, carry_out, open_at

from metier.engine.entries.entry import Entry, render_entry
from metier.engine.entries.run import RunResumed, RunStarted
from metier.engine.entries.step import SpoolIdentity, StepStarted
from metier.engine.journal import read_entries
from metier.engine.services import UserMessage
from metier.engine.stopper import Stopper
from metier.providers.failures import NotFound
from metier.runtime.answers import Answer
from metier.runtime.child_runs import request_task
from metier.runtime.driver import DriveOptions
from metier.runtime.history.archive import Archive
from metier.runtime.history.transfer import export_run, import_run
from metier.runtime.history.undo import plan_undo, undo
from metier.runtime.requests import RunRequest
from metier.testing.scripted import Line, ToolCall, calls, fails, says
from metier.version import __version__

CORPUS = Path(__file__).resolve().parent.parent / "corpus"

USE_NOTES = calls(ToolCall("use_skill", {"skill": "notes", "reason": "It fits"}))
WORK = calls(ToolCall("Look", {"text": "a"}), ToolCall("Look", {"text": "b"}), ToolCall("Pay", {"text": "c"}))
JOURNALS: dict[str, tuple[Line, ...]] = {
    "skills-and-hand-off": (USE_NOTES, WORK, calls(ToolCall("use_skill", {"skill": "reports"})), *ENOUGH),
    "approvals-and-input": (WORK, calls(ToolCall("ask_user", {"question": "Which colour?"})), *ENOUGH),
    "retry-fallback-abort": (USE_NOTES, *(calls(ToolCall("notes.break")) for _ in range(7))),
    "repair-and-signal": (says(""), calls(ToolCall("Stop")), *ENOUGH),
}

CALLED = {
    "asker": (
        "interaction_outcomes: {allowed_intermediate_states: [delegating]}\ndepends_on: [adder]\n",
        """
def execute(context):
    if context.delegated is None:
        return {'state': 'delegating', 'delegation': {'skill': 'adder', 'inputs': {'n': 1}}}
    return dict(context.delegated['outputs'])
""",
    ),
    "adder": ("", "def execute(context):\n    return {'sum': context.inputs['n'] + 1}\n"),
}


async def write(folder: Path) -> None:
    for name, script in JOURNALS.items():
        with tempfile.TemporaryDirectory() as place:
            stopper = Stopper()
            profile = "guarded" if "approvals" in name else "permissive"
            workspace = build_workspace(Path(place))
            async with open_at(workspace, *script, profile=profile, tools=build_tools(stopper)) as runtime:
                state = await carry_out(runtime, stopper=stopper)
                _write(folder, name, await read_entries(runtime.store, state.run_id))
    await _write_in_doubt(folder)
    await _write_task(folder)
    await _write_together(folder)
    await _write_call(folder)
    await _write_changed_code(folder)
    await _write_undone(folder)
    await _write_model_changed(folder)
    await _write_message_added(folder)


class _Inbox:
    """One message, sent before the first model call and added to the second."""

    def __init__(self) -> None:
        self._pending = [UserMessage(message_id="20261118-120000-0123456789ab", text="In blue", sent_by="kim")]

    def list_pending(self) -> list[UserMessage]:
        return self._pending

    async def mark_taken(self, message_ids: Sequence[str]) -> None:
        self._pending = [message for message in self._pending if message.message_id not in message_ids]


async def _write_message_added(folder: Path) -> None:
    """Write a run to which the user sent a message while it was working."""
    with tempfile.TemporaryDirectory() as place:
        lines = (calls(ToolCall("Look", {"text": "a"})), *ENOUGH)
        async with open_at(build_workspace(Path(place)), *lines) as runtime:
            state = await runtime.start(RunRequest(task="take notes"), DriveOptions(inbox=_Inbox()))
            _write(folder, "message-added", await read_entries(runtime.store, state.run_id))


async def _write_model_changed(folder: Path) -> None:
    """Write a run with an unknown model, continued with another one."""
    with tempfile.TemporaryDirectory() as place:
        lines = (fails(NotFound("There is no such model")), *ENOUGH)
        async with open_at(build_workspace(Path(place)), *lines) as runtime:
            state = await runtime.start(RunRequest(task="take notes"))
            state = await runtime.resume(state.run_id, Answer(by="kim", reopens=True, model="claude-opus-4-5"))
            _write(folder, "model-changed", await read_entries(runtime.store, state.run_id))


async def _write_undone(folder: Path) -> None:
    """Write a run whose files, changed by a tool and a program, were undone."""
    with tempfile.TemporaryDirectory() as place:
        workspace = build_workspace(Path(place))
        lines = (
            calls(ToolCall("Write", {"path": "a.txt", "content": "a"})),
            calls(ToolCall("Bash", {"command": "echo b > a.txt"})),
        )
        async with open_at(workspace, *lines, *ENOUGH) as runtime:
            state = await runtime.start(RunRequest(task="take notes"))
            await undo(runtime, await plan_undo(runtime, state.run_id), by="kim")
            _write(folder, "undone", await read_entries(runtime.store, state.run_id))


async def _write_task(folder: Path) -> None:
    """Write the journals of a task with two steps, the second rejected once."""
    with tempfile.TemporaryDirectory() as place:
        workspace = build_workspace(Path(place))
        task = workspace / ".agent/tasks/two"
        task.mkdir(parents=True)
        (task / "TASK.md").write_text("---\nname: Two\nnext: b.md\n---\n\nBegin.\n")
        (task / "b.md").write_text("---\nname: Second\noutput_schema: {type: object}\n---\n\nGo on.\n")
        lines = (says("begun"), says("not JSON"), says("{}"))
        async with open_at(workspace, *lines) as runtime:
            state = await runtime.start(request_task(runtime.host, "two", {}))
            _write(folder, "task", await read_entries(runtime.store, state.run_id))
            _write(folder, "step", await read_entries(runtime.store, state.children[1].run_id))


async def _write_together(folder: Path) -> None:
    """Write a call that starts two children and requests a third that does not exist."""
    with tempfile.TemporaryDirectory() as place:
        workspace = build_workspace(Path(place))
        for name in ("left", "right"):
            agent = workspace / ".agent/agents" / name
            agent.mkdir(parents=True)
            (agent / "AGENT.md").write_text(f"---\nname: {name}\ndescription: Looks {name}.\n---\n\nLook {name}.\n")
        tasks: list[JsonValue] = [{"agent": name, "task": "Look"} for name in ("left", "middle", "right")]
        lines = (calls(ToolCall("delegate", {"tasks": tasks})), says("seen"), says("seen"), *ENOUGH)
        async with open_at(workspace, *lines) as runtime:
            state = await runtime.start(RunRequest(task="Look both ways"))
            _write(folder, "children-together", await read_entries(runtime.store, state.run_id))


async def _write_call(folder: Path) -> None:
    """Write the journals of a skill that calls another one."""
    with tempfile.TemporaryDirectory() as place:
        workspace = build_workspace(Path(place))
        for name, (contract, impl) in CALLED.items():
            skill = workspace / ".agent/skills" / name
            skill.mkdir(parents=True)
            (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Adds.\n{contract}---\n\nCall it.\n")
            (skill / "impl.py").write_text(impl)
        async with open_at(workspace, calls(ToolCall("asker.invoke")), *ENOUGH) as runtime:
            state = await runtime.start(RunRequest(task="Add"))
            _write(folder, "skill-that-delegates", await read_entries(runtime.store, state.run_id))
            _write(folder, "skill-that-is-called", await read_entries(runtime.store, state.children[0].run_id))


async def _write_changed_code(folder: Path) -> None:
    """Write a run whose skill file changed during a pause, with its acceptance."""
    with tempfile.TemporaryDirectory() as place:
        workspace = build_workspace(Path(place))
        async with open_at(workspace, calls(ToolCall("ask_user", {"question": "Which colour?"})), *ENOUGH) as runtime:
            state = await runtime.start(RunRequest(task="take notes"))
            (workspace / "skills/notes/more.md").write_text("More.\n")
            state = await runtime.resume(state.run_id, Answer(values={"answer": "blue"}))
            accepted = Answer(values={"answer": "blue"}, by="kim", accepts_changed_skills=True)
            state = await runtime.resume(state.run_id, accepted)
            _write(folder, "changed-code", await read_entries(runtime.store, state.run_id))


async def _write_in_doubt(folder: Path) -> None:
    """Write a run killed between intent and result of an unrepeatable step."""
    with tempfile.TemporaryDirectory() as place:
        async with open_at(build_workspace(Path(place) / "a"), WORK, *ENOUGH) as runtime:
            whole = await export_run(runtime, (await carry_out(runtime)).run_id, exact=True)
        cut = max(number for number, entry in enumerate(whole.entries, 1) if isinstance(entry, StepStarted))
        killed = Archive(run_id=whole.run_id, redacted=False, entries=whole.entries[:cut], blobs=whole.blobs)
        async with open_at(build_workspace(Path(place) / "b"), *ENOUGH) as runtime:
            await import_run(runtime, killed)
            await answer_all(runtime, await runtime.resume(whole.run_id))
            _write(folder, "in-doubt", await read_entries(runtime.store, whole.run_id))


def _write(folder: Path, name: str, entries: list[Entry]) -> None:
    lines = [render_entry(_without_place(entry)) + b"\n" for entry in entries]
    (folder / f"{__version__}-{name}.jsonl").write_bytes(b"".join(lines))


def _without_place(entry: Entry) -> Entry:
    """Remove machine and process of the writer."""
    match entry:
        case RunStarted():
            return replace(entry, workspace="/project", environment="")
        case RunResumed():
            return replace(entry, driver="host:1")
        case StepStarted() if entry.spool is not None:
            spool = SpoolIdentity(machine="0" * 16, boot="1" * 8, folder="2" * 32)
            return replace(entry, spool=spool)
        case _:
            return entry


if __name__ == "__main__":
    CORPUS.mkdir(exist_ok=True)
    anyio.run(write, Path(sys.argv[1]) if len(sys.argv) > 1 else CORPUS)
