"""A replay drives a recorded run with blocked effects and produces the same journal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from run_scenarios import ENOUGH, SKILL, SmallTool, answer_all, build_tools, build_workspace, carry_out, open_at

from metier.engine.entries.entry import Entry
from metier.engine.entries.model import DecisionMade, ModelCallStarted, ModelReplied, ProgressVerified
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked
from metier.engine.entries.run import RunFinished, RunResumed
from metier.engine.entries.skill import CatalogLoaded, SkillsRanked
from metier.engine.entries.step import StepFinished, StepStarted
from metier.engine.journal import read_entries
from metier.engine.replay.replay import Replayed, replay
from metier.engine.stopper import Stopper
from metier.providers.failures import QuotaExhausted
from metier.runtime.history.archive import Archive
from metier.runtime.history.replays import build_replay_services, replay_run
from metier.runtime.history.transfer import export_run, import_run
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.testing.scripted import Line, ToolCall, calls, fails, says

pytestmark = pytest.mark.anyio

USE_NOTES = calls(ToolCall("use_skill", {"skill": "notes", "reason": "It fits"}))
WORK = calls(ToolCall("Look", {"text": "a"}), ToolCall("Look", {"text": "b"}), ToolCall("Pay", {"text": "c"}))
ASK = calls(ToolCall("ask_user", {"question": "Which colour?"}))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build_workspace(tmp_path / "project")


async def replay_entries(runtime: Runtime, run_id: str, entries: list[Entry]) -> Replayed:
    services = await build_replay_services(runtime.host, runtime.store, entries)
    return await replay(run_id, entries, services)


SCENARIOS: dict[str, tuple[Line, ...]] = {
    "skills, parallel calls and disclosure": (
        USE_NOTES,
        WORK,
        calls(ToolCall("read_skill_files", {"paths": ["SKILL.md"]}), ToolCall("skill_search", {"query": "report"})),
        says("All done."),
    ),
    "a hand-off": (USE_NOTES, calls(ToolCall("use_skill", {"skill": "reports", "reason": "Next"})), *ENOUGH),
    "a question": (ASK, *ENOUGH),
    "a failure, its retry and a fallback": (USE_NOTES, calls(ToolCall("notes.break")), *ENOUGH),
    "a tool that is not there and arguments that are wrong": (
        calls(ToolCall("Nothing"), ToolCall("Look", {"text": 7})),
        *ENOUGH,
    ),
    "a reply that means nothing, and its repair": (says(""), *ENOUGH),
    "a reply that means nothing twice": (says(""), says("")),
    "the same call again and again": tuple(calls(ToolCall("Look", {"text": "a"})) for _ in range(20)),
    "a provider that fails": (USE_NOTES, fails(QuotaExhausted("Nothing is left"))),
    "a stop by signal": (calls(ToolCall("Stop"), ToolCall("Look")), *ENOUGH),
}


@pytest.mark.parametrize("profile", ["permissive", "guarded"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_finished_run_replays_equal(name: str, profile: str, workspace: Path) -> None:
    stopper = Stopper()
    tools = build_tools(stopper)
    async with open_at(
        workspace, *SCENARIOS[name], profile="guarded" if profile == "guarded" else "permissive", tools=tools
    ) as runtime:
        state = await carry_out(runtime, stopper=stopper)
        ran = [list(tool.ran) for tool in tools]

        report = await replay_run(runtime, state.run_id)

        assert report.outcome.divergence is None
        assert report.outcome.compared == state.seq
        assert [tool.ran for tool in tools] == ran


async def test_a_paused_run_replays_up_to_its_pause(workspace: Path) -> None:
    async with open_at(workspace, WORK, profile="guarded") as runtime:
        run_id = await start_only(runtime)

        report = await replay_run(runtime, run_id)

        assert report.is_equal
        assert report.outcome.compared == len(await read_entries(runtime.store, run_id))


async def start_only(runtime: Runtime) -> str:
    return (await runtime.start(RunRequest(task="take notes"))).run_id


@pytest.mark.slow
async def test_a_run_killed_after_any_entry_replays_equal_after_it_continued(workspace: Path, tmp_path: Path) -> None:
    script = (USE_NOTES, WORK, ASK, calls(ToolCall("Put"), ToolCall("Post")), says("Done."))
    async with open_at(workspace, *script, profile="guarded") as runtime:
        whole = await export_run(runtime, (await carry_out(runtime)).run_id, exact=True)
    asked = [number for number, entry in enumerate(whole.entries, 1) if isinstance(entry, ModelReplied)]
    together = {  # entries that were written in one go cannot be parted by a kill
        number
        for number, (entry, after) in enumerate(zip(whole.entries, whole.entries[1:], strict=False), start=1)
        if isinstance(entry, RunResumed | ApprovalAsked | InputAsked)
        or (isinstance(entry, StepStarted) and isinstance(after, StepStarted))
        or (isinstance(entry, StepFinished) and isinstance(after, StepFinished))
    }

    apart = [number for number in range(1, len(whole.entries)) if number not in together]
    # One kill between entries of the same two kinds; a longer run would only have more of them.
    kinds = {(type(whole.entries[n - 1]), type(whole.entries[n])): n for n in apart}
    for number in apart if os.environ.get("METIER_CRASH_ALL") else kinds.values():
        folder = build_workspace(tmp_path / f"killed-{number}")
        left = script[sum(1 for reply in asked if reply <= number) :]
        async with open_at(folder, *left, profile="guarded") as runtime:
            killed = Archive(run_id=whole.run_id, redacted=False, entries=whole.entries[:number], blobs=whole.blobs)
            await import_run(runtime, killed)
            state = await answer_all(runtime, await runtime.resume(whole.run_id))

            report = await replay_run(runtime, whole.run_id)

            assert state.status == "completed", number
            assert report.outcome.divergence is None, number


async def test_a_tampered_entry_is_the_first_divergence(workspace: Path) -> None:
    async with open_at(workspace, USE_NOTES, WORK, ASK, *ENOUGH, profile="guarded") as runtime:
        run_id = (await carry_out(runtime)).run_id
        entries = await read_entries(runtime.store, run_id)
        tampered = {number: changed for number, entry in enumerate(entries, 1) if (changed := tamper(entry))}

        for number, changed in tampered.items():
            forged = [*entries[: number - 1], changed, *entries[number:]]
            outcome = await replay_entries(runtime, run_id, forged)

            assert outcome.divergence is not None, changed.kind
            assert outcome.divergence.number == number, changed.kind
            assert outcome.divergence.recorded == changed
        assert len({entry.kind for entry in tampered.values()}) >= 7


def tamper(entry: Entry) -> Entry | None:
    """Return a tampered entry; None for entries from outside the run."""
    match entry:
        case CatalogLoaded():
            return replace(entry, skills=("other",))
        case SkillsRanked():
            return replace(entry, considered=99)
        case ModelCallStarted():
            return replace(entry, request_hash="0" * 32)
        case DecisionMade():
            return replace(entry, turn=77)
        case StepStarted():
            return replace(entry, idempotency_key="another")
        case ApprovalAsked():
            return replace(entry, arguments_hash="0" * 64)
        case ProgressVerified():
            return replace(entry, reason="another")
        case RunFinished():
            return replace(entry, result="another")
        case _:
            return None


async def test_a_tampered_result_changes_the_next_request(workspace: Path) -> None:
    async with open_at(workspace, WORK, *ENOUGH) as runtime:
        run_id = (await carry_out(runtime)).run_id
        entries = await read_entries(runtime.store, run_id)
        at = next(n for n, entry in enumerate(entries) if isinstance(entry, StepFinished))
        entries[at] = replace(entries[at], text="Something else")

        outcome = await replay_entries(runtime, run_id, entries)

        following = next(n for n, x in enumerate(entries, 1) if n > at and isinstance(x, ModelCallStarted))
        assert outcome.divergence is not None
        assert outcome.divergence.number == following
        assert "what the steps gave changed" in outcome.divergence.sentence


async def test_an_impossible_entry_is_named(workspace: Path) -> None:
    async with open_at(workspace, WORK, *ENOUGH, profile="guarded") as runtime:
        run_id = (await carry_out(runtime)).run_id
        entries = await read_entries(runtime.store, run_id)
        at = next(n for n, entry in enumerate(entries) if isinstance(entry, ApprovalDecided))
        entries[at] = replace(entries[at], step_id="9.9")

        outcome = await replay_entries(runtime, run_id, entries)

        assert outcome.divergence is not None
        assert outcome.divergence.number == at + 1
        assert "cannot follow" in outcome.divergence.sentence


async def test_changed_files_are_ignored_unless_requested(workspace: Path) -> None:
    async with open_at(workspace, USE_NOTES, *ENOUGH) as runtime:
        run_id = (await carry_out(runtime)).run_id
        file = workspace / "skills" / "notes" / "SKILL.md"
        file.write_text(SKILL.format(name="notes", description="Something else altogether."))

        pinned = await replay_run(runtime, run_id)
        current = await replay_run(runtime, run_id, with_current_files=True)

        assert pinned.is_equal
        assert pinned.changed == ("skill:notes",)
        assert current.outcome.divergence is not None
        assert current.outcome.divergence.recorded is not None
        assert current.outcome.divergence.recorded.kind in ("skills_ranked", "model_call_started")


async def test_changed_instructions_change_the_first_request(workspace: Path) -> None:
    async with open_at(workspace, *ENOUGH) as runtime:
        run_id = (await carry_out(runtime)).run_id
        (workspace / "context").mkdir()
        (workspace / "context" / "system_prompt.md").write_text("You are somebody else.")

        current = await replay_run(runtime, run_id, with_current_files=True)

        assert (await replay_run(runtime, run_id)).is_equal
        assert current.outcome.divergence is not None
        assert "instructions" in current.outcome.divergence.sentence


async def test_a_resumed_run_keeps_its_instructions(workspace: Path) -> None:
    async with open_at(workspace, ASK, *ENOUGH) as runtime:
        run_id = await start_only(runtime)
        (workspace / "context").mkdir()
        (workspace / "context" / "system_prompt.md").write_text("You are somebody else.")
        await answer_all(runtime, await runtime.read(run_id))

        report = await replay_run(runtime, run_id)

        assert report.is_equal


async def test_another_tool_changes_the_request(workspace: Path) -> None:
    hashes: list[str] = []
    for tools in ((SmallTool("Look"),), (SmallTool("Look", "opaque"), SmallTool("More"))):
        async with open_at(workspace, *ENOUGH, tools=tools) as runtime:
            run_id = (await carry_out(runtime)).run_id
            calls_made = [x for x in await read_entries(runtime.store, run_id) if isinstance(x, ModelCallStarted)]
            hashes.append(calls_made[0].request_hash)

    assert hashes[0] != hashes[1]


FORBIDDEN = """
import sys

WRONG = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.system",
         "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")

def refuse(event, args):
    if event in WRONG:
        raise SystemExit(f"forbidden: {event} {args}")

sys.addaudithook(refuse)
from metier.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


async def test_a_replay_opens_no_connection_and_starts_no_process(workspace: Path) -> None:
    async with open_at(workspace, USE_NOTES, WORK, says("Done.")) as runtime:
        run_id = (await carry_out(runtime)).run_id
    command = [sys.executable, "-c", FORBIDDEN, "replay", run_id, "--execute"]

    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        command, cwd=workspace, env={"HOME": str(workspace)}, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Replay matches: ")
