"""Tasks, agents, skills, conversations, cost and metrics over HTTP."""

from model_server import ModelServer, says
from run_workspace import Workspace
from running_server import RunningServer, serving
from test_api_runs import start, wait_until

TASK = """---
name: Greeting
description: Greets a person.
inputs:
  - name: person
    description: Whom to greet.
  - name: times
    default: "1"
    schema: {type: integer}
---

Greet {{inputs.person}}, {{inputs.times}} times.
"""
AGENT = "---\nname: Careful\ndescription: Asks about everything.\nprofile: guarded\n---\n\nAsk.\n"


def test_a_task_shows_the_schema_of_its_inputs_and_runs_with_them(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/tasks/greeting/TASK.md", TASK)
    model.follow(says("Hello Ann."))

    with serving(workspace.folder) as server:
        listed = server.get("/api/v1/tasks")["items"]
        shown = server.get("/api/v1/tasks/greeting")
        wrong = server.post("/api/v1/tasks/greeting/runs", {"inputs": {"times": "x"}}, status=400)
        begun = server.post("/api/v1/tasks/greeting/runs", {"inputs": {"person": "Ann", "times": 2}}, status=201)
        found = wait_until(server, str(begun["run_id"]), "completed")
        unknown = server.post("/api/v1/tasks/nothing/runs", {}, status=404)

    assert [task["id"] for task in listed] == ["greeting"]
    assert shown["input_schema"] == {
        "type": "object",
        "properties": {
            "person": {"type": "string", "description": "Whom to greet."},
            "times": {"type": "integer", "default": "1"},
        },
        "required": ["person"],
        "additionalProperties": False,
    }
    assert "input 'person' is missing" in wrong["detail"]
    assert found["result"] == "Hello Ann."
    assert unknown["code"] == "task_unknown"


def test_a_task_shows_the_schema_of_its_output(workspace: Workspace) -> None:
    workspace.write(".agent/tasks/count/TASK.md", "---\nname: Count\noutput_schema: {type: integer}\n---\n\nCount.\n")
    with serving(workspace.folder) as server:
        (listed,) = server.get("/api/v1/tasks")["items"]
        shown = server.get("/api/v1/tasks/count")

    assert listed["steps"] == shown["steps"]
    assert shown["steps"][0]["output_schema"] == {"type": "integer"}


def test_agents_and_skills_are_listed(workspace: Workspace) -> None:
    workspace.write(".agent/agents/careful/AGENT.md", AGENT)
    with serving(workspace.folder) as server:
        agents = server.get("/api/v1/agents")["items"]
        skills = server.get("/api/v1/skills")["items"]

    assert [(agent["id"], agent["profile"]) for agent in agents] == [("careful", "guarded")]
    assert [skill["name"] for skill in skills if skill["active"]] == ["greeter"]


def test_a_conversation_remembers_earlier_messages(server: RunningServer, model: ModelServer) -> None:
    model.follow(says("Hello Ann."), says("You are Ann."))
    made = server.post("/api/v1/conversations", {"name": "tea"}, status=201)

    first = server.post("/api/v1/conversations/tea/messages", {"text": "I am Ann."}, status=201)
    wait_until(server, str(first["run_id"]), "completed")
    second = server.post("/api/v1/conversations/tea/messages", {"text": "Who am I?"}, status=201)
    wait_until(server, str(second["run_id"]), "completed")
    told = server.get("/api/v1/conversations/tea")
    listed = server.get("/api/v1/conversations")["items"]

    assert made["is_new"] is True
    assert [(turn["said"], turn["answer"]) for turn in told["turns"]] == [
        ("I am Ann.", "Hello Ann."),
        ("Who am I?", "You are Ann."),
    ]
    assert "I am Ann." in str(model.received[-1]["messages"])
    assert [each["context_id"] for each in listed] == ["tea"]


def test_cost_and_metrics_report_usage(server: RunningServer, model: ModelServer) -> None:
    model.follow(says("Done."))
    wait_until(server, start(server), "completed")

    cost = server.get("/api/v1/cost", by="model", since="24h")
    with server.client() as client:
        metrics = client.get("/api/v1/metrics")

    assert (cost["runs"], cost["totals"][0]["name"], cost["totals"][0]["input_tokens"]) == (1, "openai/m", 100)
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "metier_pool_slots 4\n" in metrics.text
    assert 'metier_runs{status="in_progress"} 0\n' in metrics.text


def test_a_schedule_can_be_added_run_paused_and_removed(server: RunningServer, model: ModelServer) -> None:
    model.follow(says("Watered."))
    definition = {"name": "plants", "cron": "0 7 * * *", "prompt": "water the plants"}

    added = server.post("/api/v1/schedules", {"definition": definition}, status=201)
    wrong = server.post("/api/v1/schedules", {"definition": {"name": "x"}}, status=422)
    begun = server.post("/api/v1/schedules/plants/run", status=201)
    found = wait_until(server, str(begun["run_id"]), "completed")
    paused = server.post("/api/v1/schedules/plants/pause")
    with server.client() as client:
        removed = client.delete("/api/v1/schedules/plants")

    assert (added["cron"], len(added["next"]), wrong["code"]) == ("0 7 * * *", 3, "config_error")
    assert (found["result"], paused["paused"], paused["next"]) == ("Watered.", True, [])
    assert removed.status_code == 204
    assert server.get("/api/v1/schedules")["items"] == []
