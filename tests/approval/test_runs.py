"""Approvals and tool access inside a run: asked inline, bound to the shown call, remembered only on request."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue

from metier.cli.run.approval_dialog import Prompter
from metier.decisions import describe_failure
from metier.engine.entries.entry import Entry
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided
from metier.engine.journal import read_entries
from metier.engine.options import RuntimeOptions
from metier.engine.state.run_state import RunState
from metier.errors import ConfigError
from metier.messages import ToolResultPart
from metier.runtime.approval_questions import ApprovalQuestion, Asker, Reply
from metier.runtime.driver import DriveOptions
from metier.runtime.history.forks import ForkRequest, find_points, fork_run
from metier.runtime.history.replays import replay_run
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.base import ApprovalRow, Lease, Store
from metier.store.wrapper import StoreWrapper
from metier.testing.scripted import Line, ScriptedProvider, ToolCall, calls, says
from metier.tools.base import Preview, ToolContext, ToolInfo, ToolResult

pytestmark = pytest.mark.anyio

ACCESS = ".agent/tool-access.json"


class Pen:
    """A tool that writes text to a file and previews the replaced text."""

    info = ToolInfo(
        id="test:pen",
        name="Pen",
        description="Write.",
        category="write",
        input_schema={
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            "required": ["path", "text"],
            "additionalProperties": False,
        },
        risk="high",
        effect="opaque",
    )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        (context.workspace / str(arguments["path"])).write_text(str(arguments["text"]), encoding="utf-8")
        return ToolResult(ok=True, output="written")

    async def preview(self, arguments: dict[str, JsonValue], context: ToolContext) -> Preview:
        file = context.workspace / str(arguments["path"])
        old = file.read_text(encoding="utf-8") if file.exists() else ""
        return Preview(f"-{old}\n+{arguments['text']}", base=f"<{old}>")


class Person:
    """A user who types these lines."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)

    async def __call__(self, prompt: str) -> str:
        del prompt
        if not self.lines:
            raise EOFError
        return self.lines.pop(0) + "\n"


def write(path: str, text: str) -> Line:
    return calls(ToolCall("Pen", {"path": path, "text": text}), text="It needs a note")


def make_host(folder: Path, script: Sequence[Line]) -> tuple[Host, ScriptedProvider]:
    provider = ScriptedProvider(*script)
    host = Host(
        trust=MADE_HERE,
        settings=Settings(runtime=RuntimeOptions(profile="guarded")),
        workspace=folder,
        home=folder,
        environ=dict(os.environ),
        provider=provider,
        tools=(Pen(),),
    )
    return host, provider


async def run_with(folder: Path, ask: Asker | None, *script: Line) -> tuple[RunState, ScriptedProvider]:
    host, provider = make_host(folder, script)
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"), DriveOptions(ask=ask))
        await check_replay(runtime, state.run_id)
    return state, provider


async def check_replay(runtime: Runtime, run_id: str) -> None:
    """Check that a replay from the record alone repeats all questions, answers and disabled tools."""
    report = await replay_run(runtime, run_id)
    assert report.outcome.divergence is None
    assert report.outcome.compared == len(report.outcome.entries)


def last_result(provider: ScriptedProvider) -> str:
    (part,) = provider.requests[-1].messages[-1].parts
    assert isinstance(part, ToolResultPart)
    return describe_failure(part.text)


async def test_the_run_continues_after_the_user_approves_at_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    person = Prompter(Person("w", "what?", "y"), "ada")

    state, _ = await run_with(tmp_path, person, write("a.txt", "hello"), says("Done."))

    assert state.status == "completed"
    assert (tmp_path / "a.txt").read_text() == "hello"
    shown = capsys.readouterr().err
    assert "? Call the tool Pen · high risk\n  path: a.txt\n  text: hello\n  -\n  +hello\n" in shown
    assert "model's reason: It needs a note" in shown
    assert "asked because: Profile 'guarded' asks before anything that is not reading" in shown


async def test_a_denial_reaches_the_model_with_its_reason(tmp_path: Path) -> None:
    person = Prompter(Person("n", "Not that file"), "ada")

    state, provider = await run_with(tmp_path, person, write("a.txt", "hello"), says("Fine."))

    assert state.status == "completed"
    assert last_result(provider) == "Not run: Not that file"
    assert not (tmp_path / "a.txt").exists()


async def test_edited_arguments_run_and_invalid_ones_are_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = ("e", '{"path": "b.txt"}', "e", "nonsense", "e", "", "e", '{"path": "b.txt", "text": "bye"}', "y")

    state, _ = await run_with(tmp_path, Prompter(Person(*edits), "ada"), write("a.txt", "hello"), says("Done."))

    assert state.status == "completed"
    assert [(file.name, file.read_text()) for file in tmp_path.glob("*.txt")] == [("b.txt", "bye")]
    assert "Invalid arguments: 'text' is a required property" in capsys.readouterr().err


async def test_always_covers_the_tool_until_the_run_ends(tmp_path: Path) -> None:
    person = Person("a", "c")
    script = (write("a.txt", "1"), write("b.txt", "2"), says("Done."))

    state, _ = await run_with(tmp_path, Prompter(person, "ada"), *script)

    assert state.status == "completed"
    assert (tmp_path / "b.txt").read_text() == "2"
    again, _ = await run_with(tmp_path, Prompter(person, "ada"), *script)
    assert again.pause is not None
    assert again.pause.pause == "approval"


async def test_yes_covers_one_call(tmp_path: Path) -> None:
    state, _ = await run_with(
        tmp_path, Prompter(Person("y"), "ada"), write("a.txt", "1"), write("b.txt", "2"), says("Done.")
    )

    assert state.pause is not None
    assert not (tmp_path / "b.txt").exists()


async def test_the_run_pauses_if_no_user_answers(tmp_path: Path) -> None:
    state, _ = await run_with(tmp_path, Prompter(Person("q"), "ada"), write("a.txt", "1"), says("Done."))

    assert (state.status, state.pause and state.pause.pause) == ("paused", "approval")


async def test_a_concurrent_decision_from_elsewhere_wins(tmp_path: Path) -> None:
    host, provider = make_host(tmp_path, (write("a.txt", "1"), says("Fine.")))
    async with open_runtime(host) as runtime:

        async def ask(question: ApprovalQuestion) -> Reply:
            await runtime.approvals.decide(question, Reply(decision="denied", by="eve", reason="Faster"))
            return Reply(decision="approved", by="ada", remember=True)

        state = await runtime.start(RunRequest(task="write"), DriveOptions(ask=ask))
        (question,) = await runtime.approvals.list_all()
        attempts = await runtime.approvals.attempts(question)

    assert state.remembered == set()
    assert last_result(provider) == "Not run: Faster"
    assert [(one.decided_by, one.counted) for one in attempts] == [("eve", True), ("ada", False)]


class SlowPause(StoreWrapper):
    """Lists the pending approvals right after one is stored, before the journal has its entry."""

    def __init__(self, inner: Store, reader: Runtime) -> None:
        super().__init__(inner)
        self.reader = reader
        self.listed: list[ApprovalQuestion] = []

    async def put_approval(self, lease: Lease, row: ApprovalRow) -> None:
        await super().put_approval(lease, row)
        self.listed += await self.reader.approvals.list_all(status="open")


async def test_an_approval_is_listed_only_with_its_risk_and_preview(tmp_path: Path) -> None:
    both = (ToolCall("Pen", {"path": "a.txt", "text": "1"}), ToolCall("Pen", {"path": "b.txt", "text": "2"}))
    host, _ = make_host(tmp_path, (calls(*both), says("Done.")))
    async with open_runtime(host) as runtime:
        slow = SlowPause(runtime.store, runtime)
        await Runtime(host, slow).start(RunRequest(task="write"))

        assert slow.listed == []
        questions = await runtime.approvals.list_all(status="open")

    assert [question.asked.risk for question in questions if question.asked] == ["high", "high"]


async def approve_all(runtime: Runtime) -> None:
    for question in await runtime.approvals.list_all(status="open"):
        await runtime.approvals.decide(question, Reply(decision="approved", by="ada"))


async def test_a_file_that_changed_since_it_was_shown_is_asked_about_again(tmp_path: Path) -> None:
    host, _ = make_host(tmp_path, (write("a.txt", "new"), says("Done.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"))
        await approve_all(runtime)
        (tmp_path / "a.txt").write_text("somebody else's")

        parked = await runtime.resume(state.run_id)

        assert (tmp_path / "a.txt").read_text() == "somebody else's"
        assert parked.pause is not None
        (question,) = await runtime.approvals.list_all(status="open")
        assert question.asked is not None
        assert question.asked.preview == "-somebody else's\n+new"
        await approve_all(runtime)
        done = await runtime.resume(state.run_id)
        await check_replay(runtime, state.run_id)

    assert done.status == "completed"
    assert (tmp_path / "a.txt").read_text() == "new"


async def test_the_diff_of_a_write_is_shown_and_valid_until_the_file_changes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    change = calls(ToolCall("Write", {"path": "a.txt", "content": "new\n"}))
    host, _ = make_host(tmp_path, (change, says("Done.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"))
        (first,) = await runtime.approvals.list_all(status="open")
        await approve_all(runtime)
        (tmp_path / "a.txt").unlink()
        await runtime.resume(state.run_id)
        (second,) = await runtime.approvals.list_all(status="open")
        await approve_all(runtime)
        done = await runtime.resume(state.run_id)
        await check_replay(runtime, state.run_id)

    assert first.asked is not None
    assert first.asked.preview.splitlines()[2:] == ["@@ -1 +1 @@", "-old", "+new"]
    assert second.asked is not None
    assert second.asked.preview.splitlines()[2:] == ["@@ -0,0 +1 @@", "+new"]
    assert done.status == "completed"
    assert (tmp_path / "a.txt").read_text() == "new\n"


def edit(path: str, old: str, new: str) -> ToolCall:
    return ToolCall("Edit", {"path": path, "old": old, "new": new})


@pytest.mark.parametrize(
    ("text", "problem"),
    [("one\none\n", "The old text occurs 2 times, on lines 1, 2"), ("two\n", "The old text is not in the file")],
)
async def test_an_edit_that_cannot_succeed_fails_without_a_question(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    script = (calls(edit("a.txt", "one", "three")), says("Sorry."))

    state, provider = await run_with(tmp_path, Prompter(Person(), "ada"), *script)

    assert state.status == "completed"
    assert last_result(provider).startswith(problem)
    assert (tmp_path / "a.txt").read_text() == text


async def test_an_edit_of_a_file_that_must_not_be_read_is_asked_about_first(tmp_path: Path) -> None:
    """Its failure would quote the file to the model."""
    (tmp_path / "private.txt").write_text("launch code 0000\n")
    (tmp_path / ".agent").mkdir()
    policy = "rules:\n  - verdict: deny\n    tool: Read\n    when: {path: {equals: private.txt}}\n"
    (tmp_path / ".agent" / "policy.yaml").write_text(policy)

    host, provider = make_host(tmp_path, (calls(edit("private.txt", "launch code 1", "x")), says("Sorry.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"))
        asked = [question.tool for question in await runtime.approvals.list_all(status="open")]

    assert state.pause is not None
    assert asked == ["Edit"]
    assert not any("launch code 0000" in str(request) for request in provider.requests)


async def test_an_approved_edit_that_has_become_impossible_fails_without_another_question(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    host, provider = make_host(tmp_path, (calls(edit("a.txt", "one", "two")), says("Sorry.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"))
        await approve_all(runtime)
        (tmp_path / "a.txt").write_text("somebody else's\n")

        done = await runtime.resume(state.run_id)
        await check_replay(runtime, state.run_id)

    assert done.status == "completed"
    assert last_result(provider).startswith("The old text is not in the file")


async def test_an_edit_that_an_earlier_call_makes_possible_is_asked_about_after_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").symlink_to("a.txt")
    pen = ToolCall("Pen", {"path": "b.txt", "text": "two\n"})
    host, _ = make_host(tmp_path, (calls(pen, edit("a.txt", "two", "three")), says("Done.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"))
        first = [question.tool for question in await runtime.approvals.list_all(status="open")]
        await approve_all(runtime)
        await runtime.resume(state.run_id)
        second = [question.tool for question in await runtime.approvals.list_all(status="open")]
        await approve_all(runtime)
        done = await runtime.resume(state.run_id)
        await check_replay(runtime, state.run_id)

    assert (first, second, done.status) == (["Pen"], ["Edit"], "completed")
    assert (tmp_path / "a.txt").read_text() == "three\n"


async def test_the_card_of_a_write_that_changes_nothing_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("same text\n")
    same = calls(ToolCall("Write", {"path": "a.txt", "content": "same text\n"}))

    state, _ = await run_with(tmp_path, Prompter(Person("y"), "ada"), same, says("Done."))

    assert state.status == "completed"
    shown = capsys.readouterr().err
    assert "? Replace the file a.txt · medium risk\n  The file already has this content, so nothing changes\n" in shown
    assert "same text" not in shown


async def test_a_call_edited_into_a_denied_one_is_asked_about_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".agent").mkdir()
    rules = "rules: [{tool: Pen, allow: false, when: {path: {startsWith: secret}}}]"
    (tmp_path / ".agent" / "policy.yaml").write_text(rules)
    edited = Prompter(Person("e", '{"path": "secret.txt", "text": "x"}', "n", "Leave it"), "ada")

    state, provider = await run_with(tmp_path, edited, write("a.txt", "1"), says("Fine."))

    assert state.status == "completed"
    assert "the call would be denied. Rule 1 of the host denies this call" in capsys.readouterr().err
    assert last_result(provider) == "Not run: Leave it"
    assert list(tmp_path.glob("*.txt")) == []


async def test_a_disabled_tool_is_missing_from_the_next_turn_and_denied(tmp_path: Path) -> None:
    (tmp_path / ".agent").mkdir()
    access = tmp_path / ACCESS

    async def turn_off(question: ApprovalQuestion) -> Reply:
        del question
        access.write_text('{"tools": {"Pen": {"enabled": false}}}')
        return Reply(decision="approved", by="ada", remember=True)

    state, provider = await run_with(tmp_path, turn_off, write("a.txt", "1"), write("b.txt", "2"), says("Fine."))

    offered = [{tool.name for tool in request.tools} for request in provider.requests]
    assert state.status == "completed"
    assert ["Pen" in names for names in offered] == [True, False, False]
    assert last_result(provider) == "Tool 'Pen' is turned off in 'tool-access.json'"
    assert list(tmp_path.glob("*.txt")) == []


async def test_an_access_file_that_becomes_invalid_pauses_the_run_until_it_is_fixed(tmp_path: Path) -> None:
    (tmp_path / ".agent").mkdir()
    host, _ = make_host(tmp_path, (write(ACCESS, "{"), says("Done.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"), DriveOptions(ask=Prompter(Person("y"), "ada")))
        assert state.pause is not None
        assert "tool-access.json' cannot be used: The file is not JSON" in state.pause.reason

        (tmp_path / ACCESS).write_text("{}")
        done = await runtime.resume(state.run_id)
        await check_replay(runtime, state.run_id)

    assert done.status == "completed"


async def test_a_replay_uses_the_original_rules_and_leaves_no_folder_behind(tmp_path: Path) -> None:
    (tmp_path / ".agent").mkdir()
    policy = tmp_path / ".agent" / "policy.yaml"
    policy.write_text("rules: [{tool: Pen, allow: true}]")
    host, _ = make_host(tmp_path, (write("notes.txt", "1"), says("Done.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"))
        assert state.status == "completed"
        policy.write_text("rules: [{tool: Pen, allow: false}]")
        before = sorted(host.runs.iterdir())

        await check_replay(runtime, state.run_id)
        now = await replay_run(runtime, state.run_id, with_current_files=True)

        assert sorted(host.runs.iterdir()) == before
    assert now.outcome.divergence is not None
    assert now.outcome.divergence.recorded is not None
    assert now.outcome.divergence.recorded.kind == "step_started"


async def test_a_fork_keeps_every_answer_under_its_own_ids(tmp_path: Path) -> None:
    host, _ = make_host(tmp_path, (write("a.txt", "new"), says("Done."), says("Done.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"))
        await approve_all(runtime)
        (tmp_path / "a.txt").write_text("somebody else's")
        await runtime.resume(state.run_id)
        await approve_all(runtime)
        await runtime.resume(state.run_id)
        entries = await read_entries(runtime.store, state.run_id)
        last = max(point.number for point in find_points(state.run_id, entries))

        fork = await fork_run(runtime, state.run_id, ForkRequest(at=last))
        taken = await read_entries(runtime.store, fork.state.run_id)

    def ids(of: Sequence[Entry], kind: type[ApprovalAsked | ApprovalDecided]) -> list[str]:
        return [entry.approval_id for entry in of if isinstance(entry, kind)]

    assert ids(taken, ApprovalAsked) == ids(taken, ApprovalDecided)
    assert len(set(ids(taken, ApprovalAsked))) == 2
    assert set(ids(taken, ApprovalAsked)).isdisjoint(ids(entries, ApprovalAsked))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"tools": {\n"Bash" false}}', ":2: error: The file is not JSON: Expecting ':' delimiter [not_json]"),
        ("[]", ":1: error: The file must be a mapping [not_a_mapping]"),
        ('{"tools": []}', ":1: error: Field 'tools' must be a mapping [not_a_mapping]"),
        ('{"tools": {},\n"more": 1}', ":2: error: Unknown key 'more' [unknown_key] (Known keys: tools)"),
        (
            '{"Bash": false, "Bash": true}',
            ":1: error: Key 'Bash' is repeated; it is first in line 1 [duplicate_key] (Keep one of them)",
        ),
        (
            '{"Read": true,\n"Bash": "no"}',
            ":2: error: Field 'Bash' must be true, false, or {\"enabled\": …} [bad_value]",
        ),
        (
            '{"Bash": null}',
            ":1: error: Field 'Bash' must be true, false, or {\"enabled\": …} [bad_value]",
        ),
        (
            '{"Bash": {"enable": false}}',
            ":1: error: Field 'Bash' must be true, false, or {\"enabled\": …} [bad_value]",
        ),
    ],
)
async def test_an_invalid_access_file_is_an_error_at_the_start(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / ".agent").mkdir()
    (tmp_path / ACCESS).write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError) as refused:
        await run_with(tmp_path, None, says("Done."))

    assert [one.render() for one in refused.value.problems] == [str(tmp_path / ACCESS) + problem]
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("access", [{"Pen": False}, {"tools": {"Pen": {"enabled": False}, "Read": {"enabled": True}}}])
async def test_both_forms_of_the_access_file_disable_a_tool(tmp_path: Path, access: object) -> None:
    (tmp_path / ".agent").mkdir()
    (tmp_path / ACCESS).write_text(json.dumps(access), encoding="utf-8")

    _, provider = await run_with(tmp_path, None, says("Done."))

    assert "Pen" not in {tool.name for tool in provider.requests[0].tools}


def write_both() -> Line:
    both = (ToolCall("Pen", {"path": "a.txt", "text": "1"}), ToolCall("Pen", {"path": "b.txt", "text": "2"}))
    return calls(*both, text="Two notes")


async def test_calls_of_one_reply_are_shown_and_decided_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, _ = await run_with(tmp_path, Prompter(Person("Y"), "ada"), write_both(), says("Done."))

    assert state.status == "completed"
    assert {file.name for file in tmp_path.glob("*.txt")} == {"a.txt", "b.txt"}
    shown = capsys.readouterr().err
    assert "? 1 of 2 Call the tool Pen · high risk\n  path: a.txt" in shown
    assert "? 2 of 2 Call the tool Pen · high risk\n  path: b.txt" in shown


async def test_calls_that_wait_together_can_get_different_answers(tmp_path: Path) -> None:
    state, provider = await run_with(tmp_path, Prompter(Person("n", "Not a", "y"), "ada"), write_both(), says("Done."))

    assert state.status == "completed"
    assert {file.name for file in tmp_path.glob("*.txt")} == {"b.txt"}
    parts = provider.requests[-1].messages[-1].parts + provider.requests[-1].messages[-2].parts
    assert any("Not a" in part.text for part in parts if isinstance(part, ToolResultPart))


async def test_calls_on_one_file_are_asked_about_one_at_a_time(tmp_path: Path) -> None:
    same = (ToolCall("Pen", {"path": "a.txt", "text": "1"}), ToolCall("Pen", {"path": "a.txt", "text": "2"}))
    asked: list[int] = []

    async def ask(question: ApprovalQuestion) -> Reply:
        asked.append(len(question.others))
        return Reply(decision="approved", by="ada")

    state, _ = await run_with(tmp_path, ask, calls(*same, text="Twice"), says("Done."))

    assert state.status == "completed"
    assert asked == [0, 0]


async def test_a_run_without_a_user_waits_for_all_calls_of_a_reply(tmp_path: Path) -> None:
    host, _ = make_host(tmp_path, (write_both(), says("Done.")))
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="write"), DriveOptions())
        waiting = await runtime.approvals.list_all(run_id=state.run_id, status="open")
        assert [question.arguments["path"] for question in waiting] == ["a.txt", "b.txt"]
        await runtime.approvals.decide(waiting[1], Reply(decision="approved", by="ada"))
        state = await runtime.resume(state.run_id)
        assert state.pause is not None
        assert not (tmp_path / "b.txt").exists(), "calls run in the order of the reply"
        await runtime.approvals.decide(waiting[0], Reply(decision="approved", by="ada"))
        state = await runtime.resume(state.run_id)
        await check_replay(runtime, state.run_id)

    assert state.status == "completed"
    assert (tmp_path / "b.txt").read_text() == "2"


async def test_an_unknown_key_at_the_always_prompt_does_not_approve(tmp_path: Path) -> None:
    person = Person("a", "x", "y", "b", "n", "No")

    state, _ = await run_with(tmp_path, Prompter(person, "ada"), write("a.txt", "hello"), says("Done."))

    assert state.status == "completed"
    assert not (tmp_path / "a.txt").exists()
