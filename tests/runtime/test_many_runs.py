"""Runs of one process share unchanged state and detect changes."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.scripted import ScriptedProvider, says
from metier.tools.process.sandbox.confinement import SCRATCH

pytestmark = pytest.mark.anyio


def build_host(folder: Path, provider: ScriptedProvider) -> Host:
    return Host(
        trust=MADE_HERE,
        settings=Settings(),
        workspace=folder,
        home=folder,
        environ=dict(os.environ),
        provider=provider,
    )


async def test_a_server_secret_added_between_two_runs_is_hidden_in_the_second(tmp_path: Path) -> None:
    words = "the value is correct-horse-battery-staple"
    async with open_runtime(build_host(tmp_path, ScriptedProvider(says(words), says(words)))) as runtime:
        first = await runtime.start(RunRequest(task="Say it"))
        server = {"command": "true", "env": {"API_KEY": "correct-horse-battery-staple"}, "disabled": True}
        (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"own": server}}))
        second = await runtime.start(RunRequest(task="Say it"))
        logs = [(runtime.folder(state.run_id) / "events.jsonl").read_text() for state in (first, second)]

    assert "correct-horse-battery-staple" in logs[0]
    assert "correct-horse-battery-staple" not in logs[1]


async def test_instructions_and_hooks_added_between_two_runs_are_used_by_the_second(tmp_path: Path) -> None:
    provider = ScriptedProvider(says("one"), says("two"))
    async with open_runtime(build_host(tmp_path, provider)) as runtime:
        await runtime.start(RunRequest(task="Say it"))
        (tmp_path / "context").mkdir()
        (tmp_path / "context/system_prompt.md").write_text("Speak like a pirate.")
        (tmp_path / ".agent").mkdir(exist_ok=True)
        (tmp_path / ".agent/hooks.yaml").write_text(
            "SessionStart:\n  - hooks:\n      - {type: command, command: 'true'}\n"
        )
        second = await runtime.start(RunRequest(task="Say it"))

    assert second.started is not None
    assert [hook.event for hook in second.started.hooks] == ["SessionStart"]
    assert ["pirate" in str(request) for request in provider.requests] == [False, True]


async def test_a_process_scans_for_scratch_folders_only_at_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    left = temporary / f"{SCRATCH}0123456789abcdef"

    async with open_runtime(build_host(tmp_path, ScriptedProvider(says("one"), says("two")))) as runtime:
        for is_there in (False, True):
            left.mkdir()
            os.utime(left, (0, 0))
            await runtime.start(RunRequest(task="Say it"))
            assert left.exists() is is_there
