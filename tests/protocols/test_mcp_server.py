"""The MCP server of a workspace: tools, tasks, questions, approvals, resources, and client permissions."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_peer import FORMS, MODERN, TASKS, ProcessPeer, opened_peer
from model_server import ModelServer, calls, fails, says
from run_workspace import QUICK, Workspace, use_model

from agent_command import AGENT

pytestmark = pytest.mark.anyio

TASK = """---
name: Greeting
description: Greet a person by name.
inputs:
  - name: who
    description: The person
  - name: times
    default: "1"
    schema:
      type: integer
{extra}---

Greet {{{{inputs.who}}}}.
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def write_task(workspace: Workspace, name: str = "hello/greet", extra: str = "") -> None:
    workspace.write(f".agent/tasks/{name}/TASK.md", TASK.format(extra=extra))


def get_text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


async def run_agent(workspace: Workspace, *args: str) -> int:
    """Run a command like a user at the command line."""
    return await anyio.to_thread.run_sync(workspace.agent, *args)


async def test_tasks_and_run_are_tools_with_their_inputs(workspace: Workspace) -> None:
    write_task(workspace, extra="output_schema:\n  type: object\n  required: [text]\n")

    async with opened_peer(workspace.folder) as peer:
        tools = {tool["name"]: tool for tool in (await peer.request("tools/list"))["tools"]}

    assert set(tools) == {"run", "run_result", "hello.greet"}
    greet = tools["hello.greet"]
    assert greet["inputSchema"]["required"] == ["who"]
    assert greet["inputSchema"]["properties"]["times"] == {"type": "integer"}
    assert greet["outputSchema"] == {"type": "object", "required": ["text"]}
    assert greet["description"] == "Greet a person by name."


@pytest.mark.parametrize("is_modern", [True, False])
async def test_a_task_call_starts_a_run_with_its_inputs(
    workspace: Workspace, model: ModelServer, is_modern: bool
) -> None:
    write_task(workspace)
    model.follow(says("Good morning, Ann."))

    async with opened_peer(workspace.folder, is_modern=is_modern) as peer:
        result = await peer.call("hello.greet", who="Ann")
        wrong = await peer.call("hello.greet", person="Ann")

    assert get_text(result) == "Good morning, Ann."
    assert result["isError"] is False
    assert "Greet Ann." in json.dumps(model.received[0]["messages"])
    assert wrong["isError"] is True
    assert "input 'who' is missing" in get_text(wrong)
    assert len(workspace.run_ids()) == 1


async def test_a_result_with_a_schema_is_structured(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says('{"greeting": "hello"}'))
    schema = {"type": "object", "properties": {"greeting": {"type": "string"}}, "required": ["greeting"]}

    async with opened_peer(workspace.folder) as peer:
        result = await peer.call("run", task="Greet", output_schema=schema)

    assert result["structuredContent"] == {"greeting": "hello"}


async def test_a_client_with_task_support_gets_a_stored_task_and_polls_it(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Done at last."))
    model.silent.set()

    async with opened_peer(workspace.folder, capabilities=TASKS) as peer:
        task = await peer.call("run", task="Take your time")
        (run_id,) = workspace.run_ids()
        first = await peer.request("tasks/get", taskId=task["taskId"])
        model.silent.clear()
        model.released.set()
        last = await peer.wait_for(task["taskId"], "completed", "failed")

    assert task["resultType"] == "task"
    assert task["taskId"].startswith(f"{run_id}.")
    assert (task["status"], first["status"], last["status"]) == ("working", "working", "completed")
    assert get_text(last["result"]) == "Done at last."


async def test_foreign_and_invented_tasks_are_unknown(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Mine."))
    await anyio.run_process([AGENT, "run", "my own business", "--quiet"], cwd=workspace.folder)
    (run_id,) = workspace.run_ids()

    async with opened_peer(workspace.folder, capabilities=TASKS) as peer:
        answers = [
            await peer.request(method, taskId=task_id, inputResponses={})
            for task_id in (run_id, f"{run_id}.{'0' * 32}", "", "../../etc/passwd", "x" * 5000)
            for method in ("tasks/get", "tasks/cancel", "tasks/update")
        ]

    assert {answer["error"]["code"] for answer in answers} == {-32602}


async def test_a_question_is_sent_as_a_form_and_its_answer_continues_the_run(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("ask_user", question="Which colour?", fields={"colour": "text"}), says("Blue it is."))

    async with opened_peer(workspace.folder, capabilities={**TASKS, **FORMS}) as peer:
        task = await peer.call("run", task="Paint the door")
        asking = await peer.wait_for(task["taskId"], "input_required")
        ((key, asked),) = asking["inputRequests"].items()
        other = await peer.request(
            "tasks/update", taskId=task["taskId"], inputResponses={"other": {"action": "accept"}}
        )
        still = await peer.request("tasks/get", taskId=task["taskId"])
        answer = {"action": "accept", "content": {"colour": "blue"}}
        await peer.request("tasks/update", taskId=task["taskId"], inputResponses={key: answer})
        done = await peer.wait_for(task["taskId"], "completed")

    assert asked["method"] == "elicitation/create"
    assert asked["params"]["message"] == "Which colour?"
    assert asked["params"]["requestedSchema"]["properties"] == {"colour": {"type": "string", "title": "colour"}}
    assert other["resultType"] == "complete"
    assert still["status"] == "input_required"
    assert get_text(done["result"]) == "Blue it is."


async def test_a_question_is_asked_over_a_connection_of_the_older_protocol(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("ask_user", question="Which colour?", fields={"colour": "text"}), says("Red it is."))

    async with opened_peer(workspace.folder, capabilities={"elicitation": {}}, is_modern=False) as peer:
        peer.answers.append({"action": "accept", "content": {"colour": "red"}})
        result = await peer.call("run", task="Paint the door")

    assert [request["method"] for request in peer.asked] == ["elicitation/create"]
    assert get_text(result) == "Red it is."


async def test_a_question_is_in_the_result_without_task_or_session_support(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("ask_user", question="Which colour?", fields={"colour": "text"}), says("Green it is."))

    async with opened_peer(workspace.folder, capabilities=FORMS) as peer:
        asking = await peer.call("run", task="Paint the door")
        ((key, _),) = asking["inputRequests"].items()
        again = {"name": "run", "arguments": {"task": "Paint the door"}, "requestState": asking["requestState"]}
        answer = {key: {"action": "accept", "content": {"colour": "green"}}}
        forged = await peer.request(
            "tools/call", **{**again, "requestState": asking["requestState"] + "0"}, inputResponses=answer
        )
        done = await peer.request("tools/call", **again, inputResponses=answer)

    assert asking["resultType"] == "input_required"
    assert forged["error"]["code"] == -32602
    assert get_text(done) == "Green it is."
    assert len(workspace.run_ids()) == 1


@pytest.mark.parametrize("answer", [{"action": "accept", "content": {"approve": True}}, {"action": "accept"}])
async def test_a_client_answer_cannot_approve_a_call(
    workspace: Workspace, model: ModelServer, answer: dict[str, Any]
) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    model.follow(calls("Write", path="a.txt", content="x"), says("Written."))

    async with opened_peer(workspace.folder, capabilities={**TASKS, "elicitation": {"form": {}, "url": {}}}) as peer:
        task = await peer.call("run", task="Write a file")
        with anyio.fail_after(60):
            while "agent approvals approve" not in task.get("statusMessage", ""):
                task = await peer.request("tasks/get", taskId=task["taskId"])
        approval = task["statusMessage"].rpartition("agent approvals approve ")[2].rstrip(".")
        await peer.request("tasks/update", taskId=task["taskId"], inputResponses={approval: answer, "x": answer})
        after = await peer.request("tasks/get", taskId=task["taskId"])

        assert after["status"] == "working"
        assert not peer.asked
        assert not (workspace.folder / "a.txt").exists()

        assert await run_agent(workspace, "approvals", "approve", approval) == 0
        done = await peer.wait_for(task["taskId"], "completed")

    assert get_text(done["result"]) == "Written."
    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "x"


async def test_a_call_without_tasks_reports_a_pause_and_is_resumed_later(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    model.follow(calls("Write", path="a.txt", content="x"), says("Written."))

    async with opened_peer(workspace.folder, is_modern=False, capabilities={"elicitation": {}}) as peer:
        waiting = await peer.call("run", task="Write a file")
        handle = get_text(waiting).rpartition('run "')[2].rstrip('".')
        again = await peer.call("run_result", run=handle)
        approval = get_text(waiting).partition("agent approvals approve ")[2].partition(".")[0]
        assert await run_agent(workspace, "approvals", "deny", approval, "--reason", "no") == 0
        done = await peer.call("run_result", run=handle)

    assert waiting["isError"] is True
    assert get_text(again) == get_text(waiting)
    assert get_text(done) == "Written."
    assert peer.asked == []


async def test_a_run_is_part_of_the_trace_of_the_call(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    trace = "0af7651916cd43dd8448eb211c80319c"
    meta = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}

    async with opened_peer(workspace.folder) as peer:
        await peer.request("tools/call", name="run", arguments={"task": "Do it"}, _meta=meta)

    assert {event["trace_id"] for event in workspace.events()} == {trace}


async def test_a_canceled_task_stays_canceled(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("never"))
    model.silent.set()

    async with opened_peer(workspace.folder, capabilities=TASKS) as peer:
        task = await peer.call("run", task="Take your time")
        ack = await peer.request("tasks/cancel", taskId=task["taskId"])
        canceled = await peer.wait_for(task["taskId"], "cancelled", "completed", "failed")
        again = await peer.request("tasks/cancel", taskId=task["taskId"])

    assert ack["resultType"] == again["resultType"] == "complete"
    assert canceled["status"] == "cancelled"


async def test_an_unreachable_model_is_a_host_error(workspace: Workspace, model: ModelServer) -> None:
    model.follow(fails(401))

    async with opened_peer(workspace.folder, capabilities=TASKS) as peer:
        task = await peer.call("run", task="Anything")
        failed = await peer.wait_for(task["taskId"], "failed", "completed") if "taskId" in task else task

    assert failed["error"]["code"] == -32603


def test_a_task_survives_the_process_that_created_it(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done by the second process."))
    model.silent.set()
    with ProcessPeer(workspace.folder, capabilities=TASKS) as first:
        task = first.request("tools/call", name="run", arguments={"task": "Take your time"})
        assert model.asked.wait(100)
        first.process.kill()
        first.process.wait(100)
    model.silent.clear()
    model.released.set()

    with ProcessPeer(workspace.folder, capabilities=TASKS) as second:
        found = second.request("tasks/get", taskId=task["taskId"])
        statuses = [found["status"]]
        while found["status"] == "working":
            found = second.request("tasks/get", taskId=task["taskId"])
            statuses.append(found["status"])
        code = second.close()

    assert statuses[0] == "working"
    assert get_text(found["result"]) == "Done by the second process."
    assert code == 0
    assert len(workspace.run_ids()) == 1


def test_only_protocol_messages_are_on_standard_output(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("script_run", skill="greeter", script="greet.py"), says("Greeted."))
    with ProcessPeer(workspace.folder) as peer:
        discovered = peer.request("server/discover")
        peer.write({"id": "x", "method": "nonsense"})
        assert peer.process.stdin is not None
        peer.process.stdin.write("this is no JSON\n")
        result = peer.request("tools/call", name="run", arguments={"task": "Greet"})
        assert peer.close() == 0
        assert peer.process.stdout is not None
        rest = peer.process.stdout.read()

    assert get_text(result) == "Greeted."
    assert discovered["supportedVersions"] == [MODERN]
    assert rest == ""


async def test_runs_and_artifacts_are_resources_without_secrets(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "tok-9f8e7d6c5b4a39281706")
    model.follow(says("The token is tok-9f8e7d6c5b4a39281706."))

    async with opened_peer(workspace.folder) as peer:
        said = await peer.call("run", task="say it")
        (run_id,) = workspace.run_ids()
        artifacts = workspace.folder / "runs" / run_id / "artifacts"
        artifacts.mkdir(exist_ok=True)
        (artifacts / "note.txt").write_text("tok-9f8e7d6c5b4a39281706", encoding="utf-8")
        (artifacts / "out").symlink_to("/etc/passwd")
        listed = (await peer.request("resources/list"))["resources"]
        run = await peer.request("resources/read", uri=f"metier://runs/{run_id}")
        note = await peer.request("resources/read", uri=f"metier://runs/{run_id}/artifacts/note.txt")
        missing = [
            await peer.request("resources/read", uri=uri)
            for uri in (
                f"metier://runs/{run_id}/artifacts/out",
                f"metier://runs/{run_id}/artifacts/../run.json",
                "metier://runs/..%2f..",
                "file:///etc/passwd",
                "skill://greeter/../../agent.yaml",
            )
        ]

    assert f"metier://runs/{run_id}" in [each["uri"] for each in listed]
    described = json.loads(run["contents"][0]["text"])
    assert described["status"] == "completed"
    assert described["artifacts"] == [f"metier://runs/{run_id}/artifacts/note.txt"]
    assert "tok-9f8e" not in json.dumps([said, run, note])
    assert {each["error"]["code"] for each in missing} == {-32602}


async def test_pictures_texts_and_links_to_files_are_part_of_a_result(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "tok-9f8e7d6c5b4a39281706")
    make = "printf GIF89a > $d/a.gif; echo tok-9f8e7d6c5b4a39281706 > $d/b.txt; seq 9000 > $d/c.txt"
    command = f"d=$(ls -d runs/2*)/artifacts; mkdir -p $d; {make}"
    model.follow(calls("Bash", command=command), says("Drawn."))

    async with opened_peer(workspace.folder) as peer:
        result = await peer.call("run", task="Draw")

    kinds = [(block["type"], block.get("mimeType")) for block in result["content"]]
    assert kinds == [("text", None), ("image", "image/gif"), ("resource", None), ("resource_link", "text/plain")]
    assert result["content"][2]["resource"]["mimeType"] == "text/plain"
    assert "tok-9f8e" not in json.dumps(result)


async def test_agents_are_prompts(workspace: Workspace) -> None:
    workspace.write(".agent/agents/poet/AGENT.md", "---\nname: Poet\ndescription: Writes.\n---\n\nYou write verse.\n")

    async with opened_peer(workspace.folder) as peer:
        listed = (await peer.request("prompts/list"))["prompts"]
        prompt = await peer.request("prompts/get", name="poet", arguments={"task": "On rain"})

    assert [(each["name"], each["description"]) for each in listed] == [("poet", "Writes.")]
    assert prompt["messages"][0]["content"]["text"] == "You write verse.\n\nOn rain"


async def test_a_hostile_client_gets_errors_and_the_next_request_is_answered(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Still here."))
    model.silent.set()

    async with opened_peer(workspace.folder, capabilities=TASKS) as peer:
        huge = await peer.call("run", task="x" * 10_000_000)
        unknown = await peer.call("rm -rf /")
        results: list[dict[str, Any]] = []

        async def start() -> None:
            results.append(await peer.call("run", task="one of many"))

        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(start)
        refused = [each for each in results if each.get("isError")]
        model.silent.clear()
        model.released.set()
        for each in results:
            if "taskId" in each:
                await peer.wait_for(each["taskId"], "completed")
        last = await peer.call("run", task="after all that")

    assert huge["error"]["code"] == unknown["error"]["code"] == -32602
    assert len(refused) == 14
    assert "the maximum at a time" in get_text(refused[0])
    assert get_text(last) == "Still here."


async def test_a_task_of_one_workspace_does_not_give_access_to_another(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    model.follow(says("Here."))
    model.silent.set()
    other = Workspace(tmp_path / "other")
    other.folder.mkdir()
    other.configure(model=use_model(model), runtime=QUICK)

    async with opened_peer(workspace.folder, capabilities=TASKS) as peer:
        task = await peer.call("run", task="Stay here")
        async with opened_peer(other.folder, capabilities=TASKS) as elsewhere:
            found = await elsewhere.request("tasks/get", taskId=task["taskId"])
            listed = await elsewhere.request("resources/list")
        model.released.set()

    assert found["error"]["code"] == -32602
    assert not [each for each in listed["resources"] if each["uri"].startswith("metier://")]
