"""A missing API key is reported before a run exists, and the only key that is set chooses its provider."""

import os
import subprocess
from pathlib import Path

import pytest
from model_server import ModelServer, says
from run_workspace import QUICK, Workspace

import metier
from agent_command import AGENT
from metier.providers.failures import MissingKey

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
WHAT_TO_DO = (
    "hint: Set ANTHROPIC_API_KEY in the environment, use --provider offline, or run `agent` to choose a provider"
)

type Capture = pytest.CaptureFixture[str]


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder next to an empty home."""
    (tmp_path / "home").mkdir()
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def agent(folder: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the real program in a clean home, without settings and without keys."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_") and name not in KEYS}
    env = {**clean, "HOME": str(folder.parent / "home"), "XDG_CONFIG_HOME": "", **environment}
    return subprocess.run(
        [AGENT, *args], cwd=folder, env=env, text=True, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )


def list_runs(folder: Path) -> list[str]:
    return agent(folder, "runs", "list").stdout.split()


def test_missing_key_is_reported_with_a_hint_and_creates_no_run(empty: Path) -> None:
    done = agent(empty, "run", "Say hello")

    assert done.returncode == 8
    assert done.stdout == ""
    assert done.stderr.splitlines()[-2:] == ["error: Provider 'anthropic' has no API key", WHAT_TO_DO]
    assert list_runs(empty) == []


def test_missing_key_of_a_task_step_is_reported_before_the_task_starts(empty: Path) -> None:
    folder = empty / ".agent/tasks/greet"
    folder.mkdir(parents=True)
    (folder / "TASK.md").write_text("---\nname: Greet\ndescription: Greet everyone.\n---\nSay hello.\n")

    done = agent(empty, "task", "run", "greet")

    assert done.returncode == 8
    assert done.stderr.splitlines()[-2:] == ["error: Provider 'anthropic' has no API key", WHAT_TO_DO]
    assert list_runs(empty) == []


def test_python_call_without_a_key_raises_with_a_hint(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(empty.parent / "home"))
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(MissingKey, match="Provider 'anthropic' has no API key") as caught:
        metier.run_sync("Say hello", path=str(empty))

    assert "Set ANTHROPIC_API_KEY" in caught.value.hint
    assert list_runs(empty) == []


def test_run_with_a_missing_key_resumes_after_the_key_is_set(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    workspace.configure(model={"provider": "openai", "name": "m"}, runtime=QUICK)
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)
    model.follow(says("Done."))
    assert workspace.agent("run", "--detach", "--quiet", "Say hello") == 0
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert workspace.agent("resume", "latest", "--quiet") == 8
    assert "Provider 'openai' has no API key" in capsys.readouterr().err
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)

    assert workspace.agent("resume", "latest", "--quiet") == 0

    assert (len(model.received), len(workspace.run_ids())) == (1, 1)


@pytest.mark.parametrize(
    ("variable", "chosen"),
    [
        ("OPENAI_API_KEY", "openai/gpt-6.1-terra"),
        ("GEMINI_API_KEY", "gemini/gemini-2.5-pro"),
        ("GOOGLE_API_KEY", "gemini/gemini-2.5-pro"),
        ("ANTHROPIC_API_KEY", "anthropic/claude-sonnet-4-5"),
    ],
)
def test_the_only_key_chooses_the_provider(empty: Path, variable: str, chosen: str) -> None:
    done = agent(empty, "run", "--dry-run", "Say hello", **{variable: "k" * 20})

    assert done.returncode == 0, done.stderr
    assert f"model:      {chosen}" in done.stdout.splitlines()
    shown = agent(empty, "config", "show", "--origin", **{variable: "k" * 20}).stdout
    assert next(line for line in shown.splitlines() if "model.provider" in line).split()[-2:] == [
        "environment",
        variable,
    ]


def test_settings_override_the_only_key(empty: Path) -> None:
    (empty / "agent.yaml").write_text("model: {provider: anthropic}\n")

    done = agent(empty, "run", "Say hello", OPENAI_API_KEY="k" * 20)

    assert done.returncode == 8
    assert "Provider 'anthropic' has no API key" in done.stderr


def test_two_keys_select_no_provider_and_are_named(empty: Path) -> None:
    done = agent(empty, "run", "Say hello", OPENAI_API_KEY="k" * 20, GEMINI_API_KEY="k" * 20)

    assert done.returncode == 8
    assert "--provider gemini" in done.stderr
    assert "--provider openai" in done.stderr


def test_key_variable_of_the_settings_chooses_its_provider(empty: Path) -> None:
    (empty / "agent.yaml").write_text("model: {providers: {openai: {api_key_env: TEAM_KEY}}}\n")

    done = agent(empty, "run", "--dry-run", "Say hello", TEAM_KEY="k" * 20)

    assert "model:      openai/gpt-6.1-terra" in done.stdout.splitlines()
