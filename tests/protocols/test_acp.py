"""`agent acp` against an editor made of messages: turns, tool calls, permissions, forms, canceling, loading."""

import base64
import json
import subprocess
import sys

import pytest
from acp_peer import Editor, Message, choose
from model_server import ModelServer, Reply, calls, says
from pictures import PDF, build_png
from run_workspace import QUICK, Workspace, use_model

from agent_command import AGENT, run_agent


def test_a_prompt_returns_text_plan_and_usage(workspace: Workspace, model: ModelServer) -> None:
    steps = [{"step": "Look", "status": "done"}, {"step": "Answer", "status": "in_progress"}]
    model.follow(calls("plan", steps=steps), says("Here you are."))

    with Editor(workspace.folder) as editor:
        session = editor.begin()
        answer = editor.prompt(session, "Help me")
        code = editor.close()

    assert (answer["stopReason"], code) == ("end_turn", 0)
    assert answer["usage"]["inputTokens"] == 200
    assert editor.get_said() == "Here you are."
    entries = editor.list_updates("plan")[-1]["entries"]
    assert [(entry["content"], entry["status"]) for entry in entries] == [
        ("Look", "completed"),
        ("Answer", "in_progress"),
    ]
    usage = editor.list_updates("usage_update")[-1]
    assert usage["used"] > 0
    assert usage["size"] > usage["used"]
    assert {
        command["name"] for command in editor.list_updates("available_commands_update")[0]["availableCommands"]
    } >= {
        "compact",
        "remember",
    }


def test_a_write_is_approved_with_its_diff_and_shown_after_completion(workspace: Workspace, model: ModelServer) -> None:
    workspace.write("a.txt", "old\n")
    model.follow(calls("Read", path="a.txt"), calls("Write", path="a.txt", content="new\n"), says("Written."))

    with Editor(workspace.folder, answer=choose("allow")) as editor:
        session = editor.begin()
        editor.prompt(session, "Change a.txt")

    (asked,) = editor.asked
    path = str(workspace.folder / "a.txt")
    diff = {"type": "diff", "path": path, "oldText": "old\n", "newText": "new\n"}
    assert asked["params"]["toolCall"]["content"] == [diff]
    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "new\n"
    done = [update for update in editor.updates if update.get("content") == [diff]]
    assert done, editor.updates
    assert done[-1]["status"] == "completed"
    assert done[-1]["locations"] == [{"path": path}]
    assert done[-1]["toolCallId"] == asked["params"]["toolCall"]["toolCallId"]


def test_pictures_and_files_of_a_prompt_reach_the_model_as_attachments(
    workspace: Workspace, model: ModelServer
) -> None:
    picture = base64.b64encode(build_png(4, 4)).decode()
    model.follow(says("A grey square."))

    with Editor(workspace.folder) as editor:
        editor.request("initialize", protocolVersion=1)
        session = editor.request("session/new", cwd=str(workspace.folder), mcpServers=[])["sessionId"]
        unsaved = {"uri": f"file://{workspace.folder}/draft.md", "text": "# not saved yet </file>"}
        document = {"uri": "file:///elsewhere/paper.pdf", "mimeType": "application/pdf", "blob": encode(PDF)}
        prompt = [
            {"type": "text", "text": "What is this?"},
            {"type": "image", "mimeType": "image/png", "data": picture},
            {"type": "resource", "resource": unsaved},
            {"type": "resource", "resource": document},
        ]
        answer = editor.request("session/prompt", sessionId=session, prompt=prompt)
        refused = editor.request("session/prompt", sessionId=session, prompt=[{"type": "image", "data": "not base64"}])
        broken = editor.request("session/prompt", sessionId=session, prompt=[{"type": "image", "data": encode(b"x")}])

    sent = json.dumps(model.received[0])
    assert answer["stopReason"] == "end_turn"
    assert picture in sent
    assert "# not saved yet" in sent
    assert encode(PDF) in sent
    assert "base64" in refused["error"]["message"]
    assert "error" in broken
    assert len(model.received) == 1


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_rejected_call_does_not_run_and_the_model_gets_the_reason(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), says("Then not."))

    with Editor(workspace.folder, answer=choose("reject")) as editor:
        editor.prompt(editor.begin(), "Write a.txt")

    assert not (workspace.folder / "a.txt").exists()
    assert "Rejected in the editor" in json.dumps(model.received[-1]["messages"])
    assert editor.get_said() == "Then not."


def test_a_mode_is_not_more_permissive_than_the_settings(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "strict"})

    with Editor(workspace.folder) as editor:
        editor.request("initialize", protocolVersion=1)
        opened = editor.request("session/new", cwd=str(workspace.folder), mcpServers=[])
        loose = editor.request("session/set_mode", sessionId=opened["sessionId"], modeId="permissive")

    assert [mode["id"] for mode in opened["modes"]["availableModes"]] == ["strict"]
    assert loose["error"]["code"] == -32602


def test_the_dialog_of_a_killed_run_is_shown_again_when_the_session_is_loaded(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Good day."), calls("Write", path="a.txt", content="x"), says("Written."))
    with Editor(workspace.folder) as editor:
        session = editor.begin()
        editor.prompt(session, "Hello")
        editor.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Write a.txt"}])
        editor.wait_until(lambda: len(editor.asked) == 1)
        editor.process.kill()
    assert workspace.agent("approvals", "list", "--json") == 0

    with Editor(workspace.folder, answer=choose("allow")) as again:
        again.request("initialize", protocolVersion=1)
        listed = again.request("session/list", cwd=str(workspace.folder))
        again.request("session/load", sessionId=session, cwd=str(workspace.folder), mcpServers=[])
        again.wait_until(lambda: "Written." in again.get_said())

    assert [each["sessionId"] for each in listed["sessions"]] == [session]
    assert [update["content"]["text"] for update in again.list_updates("user_message_chunk")] == [
        "Hello",
        "Write a.txt",
    ]
    assert again.get_said().startswith("Good day.")
    assert len(again.asked) == 1
    assert (workspace.folder / "a.txt").is_file()


def test_an_approval_stays_in_the_inbox_after_the_editor_disconnects(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), says("Written."))
    with Editor(workspace.folder) as editor:
        session = editor.begin()
        editor.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Write a.txt"}])
        editor.wait_until(lambda: len(editor.asked) == 1)
        assert editor.close() == 0

    listed = run_agent("approvals", "list", "--json", cwd=workspace.folder)
    (approval,) = json.loads(listed.stdout)
    assert approval["tool"] == "Write"
    assert not (workspace.folder / "a.txt").exists()


def test_a_question_is_a_form_if_the_editor_supports_forms(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("ask_user", question="Which colour?", fields={"colour": "text"}), says("Blue it is."))

    def fill(message: Message) -> Message:
        assert message["params"]["requestedSchema"]["required"] == ["colour"]
        return {"action": "accept", "content": {"colour": "blue"}}

    with Editor(workspace.folder, answer=fill) as editor:
        editor.prompt(editor.begin(elicitation={"form": {}}), "Paint it")

    assert [message["method"] for message in editor.asked] == ["elicitation/create"]
    assert editor.get_said() == "Blue it is."
    assert "blue" in json.dumps(model.received[-1]["messages"])


def test_the_next_prompt_answers_a_question_if_the_editor_has_no_forms(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("ask_user", question="Which colour?", fields={"colour": "text"}), says("Red it is."))

    with Editor(workspace.folder) as editor:
        session = editor.begin()
        editor.prompt(session, "Paint it")
        assert editor.get_said() == "Which colour?"
        editor.prompt(session, "red")

    assert editor.get_said().endswith("Red it is.")
    assert len(workspace.run_ids()) == 1


def test_a_canceled_turn_ends_as_canceled_and_the_next_one_is_answered(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Here."))
    model.silent.set()

    with Editor(workspace.folder) as editor:
        session = editor.begin()
        number = editor.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Think"}])
        assert model.asked.wait(100)
        editor.write({"method": "session/cancel", "params": {"sessionId": session}})
        cancelled = editor.wait_for(number, "session/prompt")
        model.silent.clear()
        model.released.set()
        again = editor.prompt(session, "Again")

    assert (cancelled["stopReason"], again["stopReason"]) == ("cancelled", "end_turn")
    assert editor.get_said().endswith("Here.")


def test_model_agent_and_commands_can_be_selected_in_the_editor(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/agents/poet/AGENT.md", "---\nname: Poet\n---\n\nYou write verse.\n")
    model.follow(says("A verse."))

    with Editor(workspace.folder) as editor:
        session = editor.begin()
        chosen = editor.request("session/set_config_option", sessionId=session, configId="agent", value="poet")
        wrong = editor.request("session/set_config_option", sessionId=session, configId="agent", value="../x")
        editor.prompt(session, "On rain")
        editor.prompt(session, "/remember town: Oslo")
        editor.prompt(session, "/facts")

    assert [option["currentValue"] for option in chosen["configOptions"]] == ["m", "poet"]
    assert wrong["error"]["code"] == -32602
    assert "You write verse." in json.dumps(model.received[0]["messages"])
    assert editor.get_said().endswith("- town: Oslo")
    assert len(model.received) == 1


def test_files_of_a_prompt_are_included_in_it(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Read."))
    blocks = [
        {"type": "text", "text": "What is this?"},
        {"type": "resource", "resource": {"uri": "file:///tmp/unsaved.py", "text": "print('unsaved')"}},
        {"type": "resource_link", "uri": "file:///tmp/other.py", "name": "other.py"},
    ]

    with Editor(workspace.folder) as editor:
        editor.request("session/prompt", sessionId=editor.begin(), prompt=blocks)

    sent = json.dumps(model.received[0]["messages"])
    assert "print('unsaved')" in sent
    assert "/tmp/other.py" in sent


@pytest.mark.parametrize(
    "line",
    ["not json", "[]", '{"id": 5}', '{"id": 6, "method": "session/prompt", "params": {"sessionId": "x"}}'],
)
def test_a_hostile_editor_gets_errors_and_the_next_request_is_answered(workspace: Workspace, line: str) -> None:
    with Editor(workspace.folder) as editor:
        assert editor.process.stdin is not None
        editor.process.stdin.write(f"{line}\n")
        greeting = editor.request("initialize", protocolVersion=99)
        elsewhere = editor.request("session/new", cwd="relative/path", mcpServers=[])
        unknown = editor.request("session/load", cwd=str(workspace.folder), sessionId="../../etc", mcpServers=[])
        code = editor.close()

    assert greeting["protocolVersion"] == 1
    assert elsewhere["error"]["code"] == -32602
    assert "error" in unknown
    assert code == 0


def test_a_huge_prompt_and_ten_thousand_requests_return_errors(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Still here."))

    with Editor(workspace.folder) as editor:
        session = editor.begin()
        huge = editor.prompt(session, "x" * 10_000_000)
        numbers = [editor.send("session/set_mode", sessionId="made up", modeId="strict") for _ in range(10_000)]
        last = editor.wait_for(numbers[-1], "session/set_mode")
        editor.prompt(session, "Hello")

    assert huge["error"]["code"] == -32602
    assert last["error"]["code"] in (-32602, -32000)
    assert editor.get_said() == "Still here."


def test_initialize_is_answered_before_the_runtime_is_loaded(workspace: Workspace) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", AGENT, "acp"],
        cwd=workspace.folder,
        input=json.dumps(request) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert json.loads(done.stdout)["result"]["protocolVersion"] == 1
    assert "metier.protocols.acp" in done.stderr
    assert "metier.runtime.runs" not in done.stderr


def test_text_is_streamed_without_secrets(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "tok-9f8e7d6c5b4a39281706")
    model.follow(Reply(text="The token is tok-9f8e7d6c5b4a39281706, keep it."))

    with Editor(workspace.folder) as editor:
        editor.prompt(editor.begin(), "Tell me")

    assert "tok-9f8e" not in json.dumps(editor.updates)
    assert editor.get_said().endswith("keep it.")
