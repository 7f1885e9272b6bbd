"""The first start: `agent` without arguments in an empty folder of a new user."""

import os
import sys
from pathlib import Path

import pytest
from chat_pty import CTRL_C, CTRL_D, ENTER, agent_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace, use_model

from metier.cli.main import run
from metier.settings.resolution import LoadedSettings, load_settings

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelServer) -> Workspace:
    """A user without settings and keys, with a model server at the usual address."""
    home, folder = tmp_path / "home", tmp_path / "notes"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OLLAMA_HOST", model.url.removeprefix("http://").removesuffix("/v1"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    for name in (*KEYS, "XDG_CONFIG_HOME", "XDG_DATA_HOME", "OPENAI_BASE_URL", "AGENT_SKILLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return Workspace(folder)


def load(home: Path, cwd: Path) -> LoadedSettings:
    return load_settings(flags={}, environ={}, cwd=cwd, home=home, config=None)


def test_agent_without_arguments_sets_up_a_local_server_and_answers_the_first_task(
    newcomer: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    model.models = ("small", "large")
    model.follow(says("Nice to meet you."))
    with agent_terminal(newcomer.folder) as terminal:
        terminal.wait_for("Choose a model provider:")
        offered = terminal.wait_for("[1]:")
        assert offered.index("Ollama") < offered.index("Anthropic") < offered.index("Offline")
        terminal.type(ENTER)
        terminal.wait_for("Connected: 2 models")
        terminal.wait_for("Choose a model by")
        terminal.wait_for("[1]:")
        terminal.type("large" + ENTER)
        assert "guarded" in terminal.wait_for("[1]:")
        terminal.type(ENTER)
        terminal.wait_for("Use these settings in:")
        terminal.wait_for("[1]:")
        terminal.type(ENTER)
        terminal.wait_for("Wrote ")
        terminal.wait_for("What would you like to do?")
        terminal.type("Say hello" + ENTER)
        terminal.wait_for("Nice to meet you.")
        terminal.wait_for("you>")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0

    loaded = load(tmp_path / "home", newcomer.folder)
    assert loaded.file == tmp_path / "home/.config/agent/agent.yaml"
    assert (loaded.settings.model.provider, loaded.settings.model.name) == ("openai", "large")
    assert (loaded.settings.runtime.profile, loaded.settings.runtime.max_turns) == ("guarded", 50)
    assert model.received[-1]["model"] == "large"
    assert list(newcomer.folder.glob("agent.yaml")) == []


def test_agent_without_arguments_asks_for_the_model_of_the_configured_server(
    newcomer: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-scripted")
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)
    model.models = ("small", "large")
    with agent_terminal(newcomer.folder) as terminal:
        terminal.wait_for("Choose a model provider:")
        assert "OPENAI_BASE_URL is set to" in terminal.wait_for("[1]:")
        terminal.type(ENTER)
        terminal.wait_for("Connected: 2 models")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_guarded_user_settings_apply_to_one_shot_runs_and_missing_ones_do_not(
    newcomer: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL", model.url)
    writes = calls("Write", path="made.txt", content="x")
    made = newcomer.folder / "made.txt"
    model.follow(writes, says("Done."))
    assert run(["run", "Write it", "--provider", "openai", "--model", "m"]) == 0
    assert made.exists()

    made.unlink()
    monkeypatch.delenv("AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL")
    with agent_terminal(newcomer.folder) as terminal:
        for _ in range(3):
            terminal.wait_for("[1]:")
            terminal.type(ENTER)
        terminal.wait_for("What would you like to do?")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    model.follow(writes, says("Done."))
    assert run(["run", "Write it"]) == 3
    assert not made.exists()

    # The settings of a folder replace those of the user, except for a profile that they don't name.
    newcomer.configure(model=use_model(model))
    model.follow(writes, says("Done."))
    assert run(["run", "Write it"]) == 3
    assert not made.exists()


def test_leaving_the_setup_dialog_writes_nothing(newcomer: Workspace, tmp_path: Path) -> None:
    with agent_terminal(newcomer.folder) as terminal:
        terminal.wait_for("[1]:")
        terminal.type(CTRL_C)
        assert terminal.wait_for_end() == 130

    assert list(newcomer.folder.iterdir()) == []
    assert not (tmp_path / "home/.config").exists()


def test_a_rejected_key_is_reported_and_asked_for_again(
    newcomer: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with agent_terminal(newcomer.folder) as terminal:
        terminal.wait_for("OPENAI_BASE_URL is set")
        terminal.wait_for("[1]:")
        terminal.type("1" + ENTER)
        terminal.wait_for("error: ")
        terminal.wait_for("Choose a model provider:")
        terminal.type(CTRL_C)
        assert terminal.wait_for_end() == 130


def test_offline_can_be_chosen_and_configures_only_this_folder(newcomer: Workspace, tmp_path: Path) -> None:
    with agent_terminal(newcomer.folder) as terminal:
        offered = terminal.wait_for("[1]:")
        number = next(line.split()[0] for line in offered.splitlines() if "Offline" in line)
        terminal.type(number + ENTER)
        terminal.wait_for("Permissions:")
        terminal.wait_for("[1]:")
        terminal.type(ENTER)
        terminal.wait_for("Use these settings in:")
        terminal.wait_for("[1]:")
        terminal.type("2" + ENTER)
        terminal.wait_for("What would you like to do?")
        terminal.type(CTRL_D)
        terminal.wait_for_end()

    loaded = load(tmp_path / "home", newcomer.folder)
    assert loaded.file == newcomer.folder / "agent.yaml"
    assert loaded.settings.model.provider == "offline"


def test_agent_without_arguments_opens_the_chat_if_there_is_a_settings_file(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    model.follow(says("Here I am."))
    with agent_terminal(workspace.folder) as terminal:
        terminal.wait_for("New conversation")
        terminal.type("Hello" + ENTER)
        terminal.wait_for("Here I am.")
        terminal.wait_for("you>")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_agent_without_arguments_or_terminal_shows_the_help(
    newcomer: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([]) == 2

    shown = capsys.readouterr()
    assert "Getting started" in shown.out + shown.err
    assert list(newcomer.folder.iterdir()) == []


def test_two_commands_are_enough_for_a_first_answer(
    newcomer: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(says("An answer."))

    assert run(["init", "--base-url", model.url, "--model", "m"]) == 0
    assert run(["run", "Say something"]) == 0

    assert "An answer." in capsys.readouterr().out
    assert model.received[-1]["model"] == "m"


def test_init_uses_a_local_server_only_after_confirmation(
    newcomer: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    with agent_terminal(newcomer.folder, "init") as terminal:
        terminal.wait_for(f"Use m from Ollama at {model.url}? [y/N]:")
        terminal.type("y" + ENTER)
        terminal.wait_for("Model provider: Ollama")
        assert terminal.wait_for_end() == 0

    assert load(tmp_path / "home", newcomer.folder).settings.model.name == "m"


def test_init_does_not_use_a_local_server_without_a_terminal(
    newcomer: Workspace, model: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init"]) == 0

    assert f"agent init --base-url {model.url}" in capsys.readouterr().err
    assert load(tmp_path / "home", newcomer.folder).settings.model.provider == "anthropic"


def test_init_writes_limits_for_real_work(newcomer: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["init", "--provider", "anthropic", "--model", "claude-sonnet-4-5"]) == 0

    settings = load(tmp_path / "home", newcomer.folder).settings
    assert settings.runtime.max_turns == 50
    assert settings.runtime.timeout_seconds > 120
    assert settings.model.timeout_seconds > 120
    assert settings.shell.timeout_ms > 120_000
    assert settings.model.max_context_tokens == 200_000
    assert settings.runtime.agent == "assistant"
    assert "profile: guarded" in (newcomer.folder / ".agent/agents/assistant/AGENT.md").read_text("utf-8")


def test_init_prefers_a_configured_key_to_a_local_server(
    newcomer: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "not-a-real-key")

    assert run(["init"]) == 0

    assert load(tmp_path / "home", newcomer.folder).settings.model.provider == "gemini"


AGENT = "---\nname: {name}\ndescription: Works.\n{more}---\n\nWork.\n"


def test_a_run_that_changes_files_without_approval_prints_one_notice(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(says("Done."))
    agents = {"own": "", "bold": "profile: permissive\n", "reader": "profile: permissive\ntools: [Read, Grep]\n"}
    for name, more in agents.items():
        workspace.write(f".agent/agents/{name}/AGENT.md", AGENT.format(name=name, more=more))
    notice = "Permissions: auto-approve. Use `--profile guarded` to review changes."
    told = {
        (): True,
        ("--profile", "guarded"): False,
        ("--quiet",): False,
        ("--dry-run",): False,
        ("--agent", "own"): False,
        ("--agent", "bold"): True,
        ("--agent", "reader"): False,
    }

    for flags, is_told in told.items():
        capsys.readouterr()
        assert workspace.agent("run", "say it", *flags) == 0
        assert (notice in capsys.readouterr().err) == is_told, flags
    workspace.write(".agent/agents/broken/AGENT.md", "---\nname: [\n---\n")
    assert workspace.agent("run", "say it", "--agent", "broken") == 2
    assert notice not in capsys.readouterr().err
