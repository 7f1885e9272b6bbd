"""The public names for skill authors and queue workers read `agent.yaml` like every command."""

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import metier
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says

IMPL = """
def execute(context):
    if "name" not in context.inputs:
        return {"state": "input_required", "input_request": {"missing_fields": [{"name": "name"}]}}
    return {"outputs": {"greeting": "Hello " + context.inputs["name"]}}
"""
CONTRACT = """---
name: greet
description: Greet somebody by name.
interaction_outcomes:
  allowed_intermediate_states: [input_required]
---

# Greet
"""


def configure(folder: Path, **sections: object) -> None:
    (folder / "agent.yaml").write_text(json.dumps(sections), encoding="utf-8")


def add_skill(folder: Path) -> None:
    skill = folder / "greet"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(CONTRACT, encoding="utf-8")
    (skill / "impl.py").write_text(IMPL, encoding="utf-8")


def test_a_state_store_uses_the_folder_from_the_settings(folder: Path) -> None:
    configure(folder, logging={"jsonl_dir": "journal"})

    with metier.create_state_store("ctx") as store:
        store.put_fact("inputs", "colour", "blue")

    assert (folder / "journal" / "state.db").is_file()
    assert not (folder / "runs").exists()


def test_a_state_store_uses_the_database_server_from_the_settings(
    folder: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(folder, store={"backend": "postgres", "database_url_env": "MY_DATABASE"})
    monkeypatch.setenv("MY_DATABASE", postgres_url)

    with metier.create_state_store("ctx") as store:
        store.put_fact("inputs", "colour", "blue")

    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute("select count(*) from agent_pocket_facts").fetchone()
    assert rows == (1,)
    assert not (folder / "runs" / "state.db").exists()


def test_a_conversation_with_a_skill_uses_the_store_from_the_settings(folder: Path) -> None:
    configure(folder, logging={"jsonl_dir": "journal"}, skills={"dir": "abilities"})
    add_skill(folder / "abilities")
    adapter = metier.create_agent_adapter(metier.create_executor("."))

    asked = adapter.invoke("greet", {}, "ctx")
    done = adapter.invoke("greet", {"name": "Ada"}, "ctx", resume=True)

    assert asked.state == metier.TaskState.INPUT_REQUIRED
    assert (done.state, done.outputs) == (metier.TaskState.COMPLETED, {"greeting": "Hello Ada"})
    assert (folder / "journal" / "state.db").is_file()
    assert not (folder / "runs").exists()
    with metier.create_state_store("ctx") as store:
        assert store.get_state().task_state == "completed"


HIDDEN = "plain-" + "looking-words-of-mine"
"""Only the file of the external servers says that this is a secret."""


def add_server(folder: Path) -> None:
    servers = {"mcpServers": {"notes": {"command": "notes", "env": {"NOTES_PASSWORD": HIDDEN}}}}
    (folder / ".agent").mkdir()
    (folder / ".agent" / "mcp.json").write_text(json.dumps(servers))


@pytest.mark.anyio
async def test_a_skill_called_by_a_run_stores_no_secret_of_an_external_server(folder: Path) -> None:
    add_server(folder)
    add_skill(folder / "skills")
    provider = ScriptedProvider(calls(ToolCall("greet.invoke", {"name": HIDDEN})), says("Greeted."))

    async with metier.open(folder, provider=provider) as agent:
        result = await agent.run("Greet")

    assert result.text == "Greeted."
    kept = sqlite3.connect(folder / "runs" / "state.db")
    facts = kept.execute("select group_concat(value) from pocket_facts").fetchone()[0]
    kept.close()
    assert "REDACTED" in facts
    assert HIDDEN not in facts


def test_the_secrets_of_external_servers_are_kept_out_of_a_conversation(folder: Path) -> None:
    add_server(folder)

    with metier.create_state_store("ctx") as store:
        store.put_fact("inputs", "said", f"it is {HIDDEN} here")
        kept = store.get_fact("inputs", "said")

    assert kept == "it is ***REDACTED*** here"


def test_wrong_settings_are_refused_instead_of_ignored(folder: Path) -> None:
    configure(folder, store={"backend": "mysql"})

    with pytest.raises(metier.ConfigError):
        metier.create_state_store("ctx")
    with pytest.raises(metier.ConfigError):
        metier.create_executor(".")


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_put_state_refuses_an_unknown_state_and_stores_nothing(
    folder: Path, backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "postgres":
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    configure(folder, store={"backend": backend})
    with metier.create_state_store("ctx") as store:
        for wrong in ("done", "COMPLETED", "", None):
            with pytest.raises(metier.UsageError, match=f"Unknown task state {wrong!r}") as refused:
                store.put_state(replace(store.get_state(), task_state=wrong))
            assert "input_required" in refused.value.hint
        assert store.get_state().version == 0
        for state in metier.TaskState:
            store.put_state(replace(store.get_state(), task_state=state))
            assert store.get_state().task_state == state


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_put_state_stores_the_summary_without_its_secrets(
    folder: Path, backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "postgres":
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    configure(folder, store={"backend": backend})
    with metier.create_state_store("ctx") as store:
        store.put_state(replace(store.get_state(), summary="The user wants a report"))
        assert store.get_state().summary == "The user wants a report"
        stored = store.put_state(replace(store.get_state(), summary="password=hunter2hunter2"))
        assert stored.summary == store.get_state().summary == "password=***REDACTED***"

        with pytest.raises(metier.UsageError, match="A summary of 10001 characters is too long"):
            store.put_state(replace(store.get_state(), summary="x" * 10_001))
        before = store.get_state()
        store.append_event("note", "wind")
        newer = store.summarize()
        store.put_state(before)

        assert newer == "password=***REDACTED***\nturn 1 note: wind"
        assert store.get_state().summary == newer, "a summary that was made meanwhile is not overwritten"


def test_names_in_the_capabilities_document_are_public(folder: Path) -> None:
    secret = "sk-" + "1234567890abcdefghij"

    assert metier.redact_sensitive({"config": {"api_key": secret}}) == {"config": {"api_key": "***REDACTED***"}}
    assert metier.execution_status_to_task_state("success") == metier.TaskState.COMPLETED
    assert metier.task_state_to_execution_status_value(metier.TaskState.INPUT_REQUIRED) == "blocked"
    assert hasattr(metier.create_run_router("."), "delegate")
    with metier.create_state_store("ctx") as store:
        state = store.put_state(replace(store.get_state(), task_state="input_required"))
        token = metier.generate_resume_token("ctx", version=state.version, turn=state.current_turn)
        assert metier.validate_resume_token(token, store)
        assert not metier.validate_resume_token(token, store)
    for convert in (metier.execution_status_to_task_state, metier.task_state_to_execution_status_value):
        with pytest.raises(metier.UsageError, match="'bogus'"):
            convert("bogus")


@pytest.mark.parametrize("inputs", [[1], "text", None, {1: 2}])
def test_inputs_that_are_not_an_object_are_refused_before_the_skill_is_called(folder: Path, inputs: Any) -> None:
    add_skill(folder / "skills")
    executor = metier.create_executor(".")
    adapter = metier.create_agent_adapter(executor)

    for call in (adapter.invoke, executor.execute):
        with pytest.raises(metier.UsageError, match="inputs must be a dict with text keys") as refused:
            call("greet", inputs, "ctx")
        assert repr(inputs) in refused.value.message


@pytest.mark.parametrize("skill", [5, None, ["greet"]])
def test_skill_that_is_not_a_string_is_rejected(folder: Path, skill: Any) -> None:
    executor = metier.create_executor(".")
    adapter = metier.create_agent_adapter(executor)

    for call in (adapter.invoke, executor.execute):
        with pytest.raises(metier.UsageError, match="skill must be a name") as refused:
            call(skill, {}, "ctx")
        assert repr(skill) in refused.value.message


def test_context_that_is_not_a_string_is_rejected(folder: Path) -> None:
    add_skill(folder / "skills")
    wrong: Any = 5

    with pytest.raises(metier.UsageError, match="5"):
        metier.create_agent_adapter(metier.create_executor(".")).invoke("greet", {}, wrong)


def test_invalid_builder_arguments_are_named(folder: Path) -> None:
    class Blocking:
        def ask(self, prompt: str, schema: object) -> str:
            return prompt

    wrong: Any
    for wrong in ("claude", 5, print, Blocking(), Blocking):
        with pytest.raises(metier.UsageError, match="advisor needs a method `async def ask"):
            metier.create_executor(".", advisor=wrong)
    wrong = "."
    with pytest.raises(metier.UsageError, match="router needs a method `async def delegate"):
        metier.create_agent_adapter(metier.create_executor("."), router=wrong)
    with pytest.raises(metier.UsageError, match="is no executor"):
        metier.create_agent_adapter(wrong)
    with pytest.raises(metier.UsageError, match="summarize must be a function"):
        metier.create_state_store("ctx", summarize=wrong)
    wrong = 5
    with pytest.raises(metier.UsageError, match="repo_root must be a path, not 5"):
        metier.create_executor(wrong)
    with metier.create_state_store("ctx") as store, pytest.raises(metier.UsageError, match="put_state takes the state"):
        store.put_state(wrong)


UNCLOSED = """
import asyncio, gc, sys, metier
store = metier.create_state_store("ctx")
store.put_fact("inputs", "colour", "blue")
async def drop():
    global store
    del store
    gc.collect()
if "gc" in sys.argv:
    del store
    gc.collect()
elif "loop" in sys.argv:
    asyncio.run(drop())
print("done")
"""
FORKED = """
import os, sys, metier
store = metier.create_state_store("ctx")
store.put_fact("inputs", "colour", "blue")
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
store.put_fact("inputs", "colour", "red")
print(store.get_fact("inputs", "colour"))
"""


def test_exiting_forked_child_leaves_the_store_of_its_parent_open(folder: Path, postgres_url: str) -> None:
    environ = {**os.environ, "STATE_STORE_BACKEND": "postgres", "DATABASE_URL": postgres_url}

    done = subprocess.run([sys.executable, "-c", FORKED], env=environ, capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.returncode) == ("red\n", 0), done.stderr


@pytest.mark.parametrize("end", ["exit", "gc", "loop"])
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_unclosed_state_store_causes_no_warning_at_exit(
    folder: Path, backend: str, end: str, request: pytest.FixtureRequest
) -> None:
    environ = {**os.environ, "STATE_STORE_BACKEND": backend}
    if backend == "postgres":
        environ["DATABASE_URL"] = request.getfixturevalue("postgres_url")

    command = [sys.executable, "-W", "default::ResourceWarning", "-c", UNCLOSED, end]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
