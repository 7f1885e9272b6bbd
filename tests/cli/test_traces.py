"""Traces received by a tracing backend over OTLP from the real command, live and exported again."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from mcp_workspace import accept, use_hostile
from model_server import ModelServer, calls, fails, says
from otlp_receiver import Received, Receiver, receiving
from run_workspace import QUICK, WAIT, Workspace, use_model
from vendor_servers import KEYS, running_vendors

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
ALLOWED = "tool_approvals:\n  rules:\n    - {tool: delegate, allow: true}\n    - {tool: Glob, allow: true}\n"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in [name for name in os.environ if name.startswith("OTEL_") or name == "TRACEPARENT"]:
        monkeypatch.delenv(name)
    with receiving() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def greet(model: ModelServer, text: str = "Hello.") -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet", args=[]), says(text))


def test_a_run_is_exported_as_a_span_tree_with_conventional_attributes(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    greet(model)
    model.cached = 40

    assert workspace.agent("run", "Greet Ada") == 0

    assert receiver.tree() == [
        "invoke_agent metier",
        "invoke_agent metier > load_skills",
        "invoke_agent metier > chat m",
        "invoke_agent metier > execute_tool script_run",
        "invoke_agent metier > execute_tool script_run > run_script greeter/greet.py",
        "invoke_agent metier > chat m",
    ]
    kinds = {span.name.partition(" ")[0]: span.kind for span in receiver.spans}
    assert kinds == {
        "invoke_agent": "internal",
        "load_skills": "internal",
        "chat": "client",
        "execute_tool": "internal",
        "run_script": "internal",
    }
    chat, run = receiver.find("chat m"), receiver.find("invoke_agent metier")
    assert chat.attributes["gen_ai.provider.name"] == "openai"
    assert chat.attributes["gen_ai.usage.input_tokens"] == 100
    assert chat.attributes["gen_ai.usage.cache_read.input_tokens"] == 40
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert run.attributes["gen_ai.usage.input_tokens"] == 200, "both calls, cached tokens among them"
    assert run.attributes["metier.run.status"] == "completed"
    assert run.attributes["gen_ai.conversation.id"] == run.attributes["metier.run.id"] == workspace.run_ids()[-1]
    script = receiver.find("run_script greeter/greet.py")
    assert script.attributes["process.exit.code"] == 0
    assert int(str(script.attributes["metier.process.stdout.bytes"])) > 0
    assert script.attributes["metier.step.status"] == "succeeded"
    assert script.attributes["skill.name"] == "greeter"
    assert script.attributes["skill.script"] == "greet.py"
    assert script.attributes["skill.execution.status"] == "success"
    assert script.attributes["skill.stdout_bytes"] == script.attributes["metier.process.stdout.bytes"]
    assert script.attributes["skill.stderr_bytes"] == 0
    assert float(str(script.attributes["skill.execution.duration_ms"])) > 0
    assert "skill.error_type" not in script.attributes
    load = receiver.find("load_skills")
    assert (load.attributes["skill.count"], load.attributes["skill.names"]) == (1, ["greeter"])
    assert load.attributes["skill.problems"] == 0
    assert all(span.start <= span.end for span in receiver.spans)
    assert receiver.service == "metier"
    assert "gen_ai.client.operation.duration" in receiver.metrics
    assert "gen_ai.client.token.usage" in receiver.metrics


def test_cost_is_on_each_call_and_the_run_and_an_unknown_price_is_not_zero(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    greet(model)
    assert workspace.agent("run", "Greet Ada") == 0
    unknown = receiver.forget()
    workspace.write("facts.yaml", "openai:\n  m: {prices: {input: 1000, output: 1000, as_of: 2026-11-01}}\n")
    workspace.configure(model={**use_model(model), "facts_file": "facts.yaml"}, runtime=QUICK)
    greet(model)

    assert workspace.agent("run", "Greet Ada") == 0

    costs = {(span.name, span.attributes.get("metier.cost.usd")) for span in receiver.spans}
    known = {(name, cost) for name, cost in costs if cost is not None}
    assert known == {("chat m", 0.11), ("invoke_agent metier", 0.22)}, "110 tokens of each call at 1000 USD a million"
    assert unknown
    assert all("metier.cost.usd" not in span.attributes for span in unknown)


def test_export_sends_the_spans_of_the_run_with_equal_ids_and_times(
    workspace: Workspace, model: ModelServer, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    greet(model)
    assert workspace.agent("run", "Greet Ada") == 0
    live = receiver.forget()
    capsys.readouterr()

    assert workspace.agent("runs", "export", "latest", "--otlp", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    first = receiver.forget()
    assert workspace.agent("runs", "export", "latest", "--otlp") == 0

    assert by_id(first) == by_id(live) == by_id(receiver.spans)
    assert told["spans"] == 6
    assert told["trace_id"] == live[0].trace
    assert "gen_ai.client.token.usage" in receiver.metrics


def test_a_killed_run_finished_by_another_process_is_one_trace(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    workspace.add_skill("waiter", "Wait for a writer.", wait=WAIT)
    fifo = workspace.folder / "pipe"
    os.mkfifo(fifo)
    step = calls("script_run", skill_name="waiter", script_name="wait", args=[str(fifo)])
    model.follow(calls("script_run", skill_name="greeter", script_name="greet", args=[]), step, says("Done."))
    process = workspace.start("run", "Wait")
    pipe = os.open(fifo, os.O_WRONLY)
    process.kill()
    process.communicate(timeout=60)
    os.close(pipe)

    if workspace.agent("resume", "latest") != 0:  # how far the script came is not known
        assert workspace.agent("resume", "latest", "--answer", "skip") == 0

    spans = by_id(receiver.spans)
    assert {span.trace for span in spans.values()} == {receiver.spans[0].trace}
    assert len([span for span in spans.values() if span.name == "execute_tool script_run"]) == 2
    root = receiver.find("invoke_agent metier")
    assert all(span.parent in spans for span in spans.values() if span.id != root.id)
    assert root.attributes["metier.run.resumes"] != 0
    assert workspace.agent("runs", "export", "latest", "--otlp") == 0
    assert by_id(receiver.spans) == spans


def test_a_child_run_is_part_of_the_trace_of_its_parent(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    for name in ("lead", "checker"):
        workspace.write(f".agent/agents/{name}/AGENT.md", f"---\nname: {name}\n{ALLOWED}---\n\nWork.\n")
    model.follow(
        calls("delegate", agent="checker", task="Check it"),
        calls("Glob", pattern="*.yaml"),
        says("Checked."),
        says("All done."),
    )

    assert workspace.agent("run", "--agent", "lead", "Have it checked") == 0

    assert receiver.tree() == [
        "invoke_agent lead",
        "invoke_agent lead > load_skills",
        "invoke_agent lead > chat m",
        "invoke_agent lead > execute_tool delegate",
        "invoke_agent lead > execute_tool delegate > invoke_agent checker",
        "invoke_agent lead > execute_tool delegate > invoke_agent checker > load_skills",
        "invoke_agent lead > execute_tool delegate > invoke_agent checker > chat m",
        "invoke_agent lead > execute_tool delegate > invoke_agent checker > execute_tool Glob",
        "invoke_agent lead > execute_tool delegate > invoke_agent checker > chat m",
        "invoke_agent lead > chat m",
    ]
    lead = receiver.find("invoke_agent lead")
    assert lead.attributes["gen_ai.usage.input_tokens"] == 200, "the child has its own"


def test_an_approval_is_a_span_from_the_question_to_the_decision(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    model.follow(calls("Write", path="note.txt", content="x"), says("Written."))
    assert workspace.agent("run", "--profile", "guarded", "Write it") == 3
    approval = next(e["payload"]["approval_id"] for e in workspace.events() if e["event_type"] == "approval_requested")
    assert workspace.agent("approvals", "approve", approval) == 0
    assert workspace.agent("resume", "latest") == 0

    wait = receiver.find("await_approval Write")
    assert wait.attributes["metier.approval.decision"] == "approved"
    assert receiver.find("execute_tool Write").start >= wait.end
    assert receiver.find("invoke_agent metier").start <= wait.start


def test_time_in_the_queue_is_a_span_from_the_start_of_the_run_until_a_worker_takes_it(
    workspace: Workspace, model: ModelServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")
    model.follow(says("Hello."))
    assert workspace.agent("run", "--detach", "Greet Ada") == 0
    assert workspace.agent("worker", "--once") == 0
    live = receiver.forget()
    assert workspace.agent("runs", "export", "latest", "--otlp") == 0

    assert by_id(live) == by_id(receiver.spans)
    assert receiver.tree()[:2] == ["invoke_agent metier", "invoke_agent metier > await_worker"]
    assert [span.name for span in receiver.spans].count("await_worker") == 1
    run, wait = receiver.find("invoke_agent metier"), receiver.find("await_worker")
    assert wait.start == run.start
    assert wait.start < wait.end <= receiver.find("chat m").start


@pytest.mark.parametrize("status", [200, 401])
def test_a_model_call_names_the_host_and_port_of_its_server_and_nothing_else_of_the_address(
    workspace: Workspace, model: ModelServer, receiver: Receiver, status: int
) -> None:
    scheme, _, host = model.url.removesuffix("/v1").partition("://")
    base_url = f"{scheme}://ada:letmein@{host}/v1"
    workspace.configure(
        model={"provider": "openai", "name": "m", "providers": {"openai": {"base_url": base_url}}}, runtime=QUICK
    )
    model.follow(says("Hello.") if status == 200 else fails(status))

    assert workspace.agent("run", "Greet Ada") == (0 if status == 200 else 8)
    live = receiver.forget()
    assert workspace.agent("runs", "export", "latest", "--otlp") == 0

    chat = receiver.find("chat m")
    assert chat.attributes["server.address"] == "127.0.0.1"
    assert chat.attributes["server.port"] == int(host.partition(":")[2])
    assert bool(chat.error) == (status != 200)
    assert by_id(live) == by_id(receiver.spans)
    sent = b"".join(receiver.bodies)
    assert b"letmein" not in sent
    assert b"/v1" not in sent


@pytest.mark.parametrize(("vendor", "word"), [("anthropic", "end_turn"), ("gemini", "STOP"), ("openai", "stop")])
def test_the_finish_reason_is_the_word_of_the_provider(
    workspace: Workspace, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, vendor: str, word: str
) -> None:
    monkeypatch.setenv(KEYS[vendor], "test-key")
    with running_vendors() as vendors:
        workspace.configure(model={"provider": vendor, "name": "m", "providers": vendors.settings()})

        assert workspace.agent("run", "Greet Ada") == 0

    assert receiver.find("chat m").attributes["gen_ai.response.finish_reasons"] == [word]


def test_calls_that_a_rule_or_a_user_denies_are_spans_with_the_reason_and_without_duration(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    rules = "tool_approvals:\n  rules:\n    - {tool: Glob, verdict: deny}\n    - {tool: Write, verdict: ask}\n"
    workspace.write(".agent/agents/careful/AGENT.md", f"---\nname: careful\n{rules}---\n\nWork.\n")
    model.follow(calls("Glob", pattern="*.md"), calls("Write", path="note.txt", content="x"), says("Not written."))
    assert workspace.agent("run", "--agent", "careful", "Write it") == 3
    approval = next(e["payload"]["approval_id"] for e in workspace.events() if e["event_type"] == "approval_requested")
    assert workspace.agent("approvals", "deny", approval) == 0
    assert workspace.agent("resume", "latest") == 0

    for tool in ("Glob", "Write"):
        refused = receiver.find(f"execute_tool {tool}")
        assert refused.start == refused.end
        assert refused.attributes["metier.step.status"] == "denied"
        assert refused.error == refused.attributes["error.type"] == "denied"
        assert refused.parent == receiver.find("invoke_agent careful").id
    assert receiver.find("await_approval Write").attributes["metier.approval.decision"] == "denied"


def test_calls_of_disabled_and_unknown_tools_are_spans_and_a_name_that_the_model_made_up_is_not_exported(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    workspace.write(".agent/tool-access.json", '{"Bash": false}')
    model.follow(calls("Bash", command="ls"), calls("mistery_tool"), says("Nothing run."))

    assert workspace.agent("run", "Look") == 0

    disabled, unknown = receiver.find("execute_tool Bash"), receiver.find("execute_tool")
    assert (disabled.error, unknown.error) == ("disabled_tool", "unknown_tool")
    assert all(span.start == span.end for span in (disabled, unknown))
    assert b"mistery" not in b"".join(receiver.bodies)


def test_a_task_span_contains_its_agents_and_a_failed_script_is_an_error(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    workspace.add_skill("breaker", "Break with a script.", fall="import sys\nprint('x' * 100)\nsys.exit(3)\n")
    rules = "tool_approvals:\n  rules:\n    - {tool: script_run, allow: true}\n"
    first = f"---\nname: Release\ndescription: Two steps.\nnext: last.md\n{rules}---\n\nBegin.\n"
    workspace.write(".agent/tasks/release/TASK.md", first)
    workspace.write(".agent/tasks/release/last.md", "---\nname: Last\n---\n\nEnd.\n")
    fall = calls("script_run", skill_name="breaker", script_name="fall", args=[])
    model.follow(fall, says("Begun."), says("Ended."))

    assert workspace.agent("task", "run", "release", "--quiet") == 0

    tree = receiver.tree()
    assert tree[0] == "invoke_workflow release"
    step = "invoke_workflow release > execute_tool delegate > invoke_agent metier"
    assert [path for path in tree if path.endswith("invoke_agent metier")] == [step, step]
    workflow, script = receiver.find("invoke_workflow release"), receiver.find("run_script breaker/fall.py")
    assert (workflow.kind, workflow.attributes["gen_ai.workflow.name"]) == ("internal", "release")
    assert script.attributes["process.exit.code"] == 3
    assert script.attributes["metier.process.stdout.bytes"] == 101
    assert script.attributes["metier.step.status"] == "failed"
    assert (script.attributes["skill.execution.status"], script.attributes["skill.error_type"]) == (
        "error",
        "execution_failed",
    )
    assert float(str(script.attributes["metier.duration_ms"])) > 0
    assert script.error
    assert receiver.metrics >= {
        "gen_ai.client.operation.duration",
        "gen_ai.client.token.usage",
        "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration",
        "gen_ai.invoke_workflow.duration",
    }


def test_standard_variables_set_service_resource_and_headers_and_disable_telemetry(
    workspace: Workspace, model: ModelServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.follow(says("Hello."))
    monkeypatch.setenv("OTEL_SERVICE_NAME", "desk")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=ada")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")

    assert workspace.agent("run", "--quiet", "Greet Ada") == 0
    seen = receiver.forget()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert workspace.agent("run", "--quiet", "Greet Bob") == 0

    assert seen
    assert (receiver.service, receiver.metrics, receiver.spans) == ("desk", set(), [])
    assert receiver.headers["x-team"] == "ada"
    assert b"staging" in b"".join(receiver.bodies)


def test_no_secret_is_exported_and_content_only_on_request(
    workspace: Workspace, model: ModelServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.follow(
        calls("Write", path="secret-plan.txt", content=f"the plan is {SECRET}"), says(f"Wrote the plan, {SECRET}")
    )
    assert workspace.agent("run", "Write down the plan of Ada") == 0
    sent = b"".join(receiver.bodies)
    for word in (b"the plan", b"plan of Ada", b"secret-plan", SECRET.encode()):
        assert word not in sent

    receiver.bodies.clear()
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    assert workspace.agent("runs", "export", "latest", "--otlp") == 0
    sent = b"".join(receiver.bodies)
    assert b"plan of Ada" in sent
    assert b"secret-plan" in sent
    assert SECRET.encode() not in sent


def test_the_trace_context_is_propagated_to_the_model_and_child_processes(
    workspace: Workspace, model: ModelServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT)
    show = 'import json, os\nprint(json.dumps({"summary": os.environ.get("TRACEPARENT", "none")}))\n'
    workspace.add_skill("shower", "Show the context.", show=show)
    model.follow(
        calls("script_run", skill_name="shower", script_name="show", args=[]),
        calls("Bash", command="echo $TRACEPARENT > context.txt"),
        says("Shown."),
    )

    assert workspace.agent("run", "Show it") == 0

    root = receiver.find("invoke_agent metier")
    assert (root.trace, root.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    script, shell = receiver.find("execute_tool script_run"), receiver.find("execute_tool Bash")
    assert f"00-{root.trace}-{script.id}-01" in json.dumps(model.received[1])
    assert (workspace.folder / "context.txt").read_text().strip() == f"00-{root.trace}-{shell.id}-01"
    chats = [span for span in receiver.spans if span.name == "chat m"]
    assert [headers["traceparent"] for headers in model.headers] == [f"00-{root.trace}-{span.id}-01" for span in chats]


def test_an_external_tool_server_gets_the_span_of_the_call(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(calls("bad___count"), says("Counted."))

    assert workspace.agent("run", "Count") == 0

    span = receiver.find("execute_tool bad/count")
    told = json.loads((workspace.folder / "meta.json").read_text())
    assert told["traceparent"] == f"00-{span.trace}-{span.id}-01"
    assert span.attributes["gen_ai.tool.type"] == "extension"


def test_an_unsampled_trace_is_not_exported(
    workspace: Workspace, model: ModelServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT.removesuffix("01") + "00")
    greet(model)

    assert workspace.agent("run", "Greet Ada") == 0

    assert receiver.spans == []


def test_an_unreachable_endpoint_causes_a_warning_and_does_not_fail_the_run(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    greet(model)

    assert workspace.agent("run", "Greet Ada") == 0
    assert "Traces are not exported" in capsys.readouterr().err
    assert workspace.agent("runs", "export", "latest", "--otlp") == 1
    assert "was not taken by http://127.0.0.1:9/v1/traces" in capsys.readouterr().err


def test_disabled_telemetry_does_not_import_opentelemetry(workspace: Workspace, model: ModelServer) -> None:
    greet(model)
    code = (
        "import os, sys\nfrom metier.cli.main import run\n"
        "for said in ('nothing', 'that it is off'):\n"
        "    run(['run', 'Greet Ada'])\n"
        "    print('', [name for name in sys.modules if name.startswith('opentelemetry')], sep='\\n')\n"
        "    os.environ |= {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:9', 'OTEL_SDK_DISABLED': 'true'}\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}

    ended = subprocess.run(
        [sys.executable, "-c", code], env=kept, capture_output=True, text=True, timeout=60, check=True
    )

    assert ended.stdout.splitlines().count("[]") == 2
    assert len(workspace.run_ids()) == 2


def by_id(spans: list[Received]) -> dict[str, Received]:
    return {span.id: span for span in spans}
