"""The names for skill authors and queue workers: they read `agent.yaml` as every command does."""

import json
import sqlite3
from pathlib import Path

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


def test_a_state_store_lies_in_the_folder_that_the_settings_name(folder: Path) -> None:
    configure(folder, logging={"jsonl_dir": "journal"})

    with metier.create_state_store("ctx") as store:
        store.put_fact("inputs", "colour", "blue")

    assert (folder / "journal" / "state.db").is_file()
    assert not (folder / "runs").exists()


def test_a_state_store_is_the_database_server_that_the_settings_name(
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


def test_a_conversation_with_a_skill_is_kept_where_the_settings_say(folder: Path) -> None:
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
async def test_a_skill_that_a_run_calls_keeps_no_secret_of_an_external_server(folder: Path) -> None:
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
