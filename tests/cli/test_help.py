"""Help texts: each command has a summary, a paragraph and examples; a misspelled word gets a suggestion."""

import re
from pathlib import Path
from typing import Any

import pytest

from metier.cli.help import dress, load_texts
from metier.cli.help import list_commands as list_runnable
from metier.cli.main import run
from metier.cli.root import ALIASES, COMMANDS, load_command
from metier.version import __version__


def list_commands() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in COMMANDS:
        if name not in ALIASES:
            command = load_command(name)
            dress(command, f"agent {name}")
            found |= list_runnable(command, f"agent {name}")
    return found


def test_every_command_has_a_summary_a_paragraph_and_an_example() -> None:
    texts = load_texts()
    lacking = [
        path
        for path, command in list_commands().items()
        if path not in texts or not texts[path].about or not texts[path].examples or not (command.help or "").strip()
    ]

    assert lacking == [], "Add a section to src/metier/cli/commands.md"


def test_no_help_text_mentions_a_missing_command() -> None:
    assert [path for path in load_texts() if path not in list_commands()] == []


def test_every_option_has_a_description() -> None:
    unexplained = [
        f"{path} {parameter.opts[0]}"
        for path, command in list_commands().items()
        for parameter in command.params
        if not getattr(parameter, "hidden", False) and not (getattr(parameter, "help", None) or "").strip()
    ]

    assert unexplained == []


def test_summary_of_a_command_has_at_most_60_characters_and_help_of_an_option_at_most_10_words() -> None:
    commands = list_commands()
    summaries = {path: command.help.strip().partition("\n\n")[0] for path, command in commands.items()}
    options = {
        f"{path} {each.opts[0]}": each.help or "" for path, command in commands.items() for each in command.params
    }

    assert [path for path, text in summaries.items() if len(text.rstrip(".")) > 60] == []
    assert [path for path, text in options.items() if len(text.split()) > 10] == []


def test_help_avoids_words_that_readers_stumble_over() -> None:
    avoided = re.compile(
        r"\b(shall|anew|go(es)? on|beside|somebody|mend|judged?|park|a person|in doubt|so (many|long))\b"
    )
    texts = {path: f"{command.help} {command.epilog}" for path, command in list_commands().items()}
    texts |= {
        f"{path} {each.opts[0]}": each.help or ""
        for path, command in list_commands().items()
        for each in command.params
    }

    assert {path: found[0] for path, text in texts.items() if (found := avoided.search(text))} == {}


def test_every_option_shows_the_values_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    # A type that is a name of ours says nothing to a person; the words do.
    for path in list_commands():
        assert run([*path.split()[1:], "--help"]) == 0
        shown = capsys.readouterr().out
        assert re.findall(r"<[A-Z][A-Za-z]*>", shown) == [], path


@pytest.mark.parametrize("words", [["run"], ["skills", "add"], ["skill", "add"], []])
def test_help_command_prints_the_same_as_the_option(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    expected = capsys.readouterr().out

    assert run(["help", *words]) == 0
    assert capsys.readouterr().out == expected


def test_help_shows_examples_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0

    shown = capsys.readouterr().out
    assert 'agent run "take stock of this folder" --provider offline\n' in shown
    assert "permissive|guarded|strict" in shown
    assert "text|json|stream-json" in shown


def test_the_list_starts_with_the_most_used_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0

    shown = capsys.readouterr().out
    words = (
        "  init ",
        "  run ",
        "  chat ",
        "  resume ",
        "  task ",
        "  runs ",
        "  approvals ",
        "  skills ",
        "  config ",
        "  check ",
    )
    places = [shown.index(word) for word in words]
    assert places == sorted(places)
    assert run(["runs", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("  list ") < shown.index("  show ") < shown.index("  export ") < shown.index("  rebuild ")


def test_version_command_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    assert capsys.readouterr().out == f"agent {__version__}\n"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("runn x", "run"),
        ("chta", "chat"),
        ("verison", "version"),
        ("help runs shwo", "show"),
        ("runs lst", "list"),
        ("skills ad x", "add"),
        ("run x --modle m", "--model"),
        ("runs list --limt 3", "--limit"),
        ("run x --profile gaurded", "guarded"),
        ("run x --output-format jsn", "json"),
        ("task run revew", "review"),
        ("task show revew", "review"),
        ("run x --agent asistant", "assistant"),
        ("agents show asistant", "assistant"),
        ("skills inspect open-taks", "open-tasks"),
        ("skills info schema-infr", "schema-infer"),
        ("skills enable schema-infr", "schema-infer"),
        ("config set runtime.max_turn 3", "runtime.max_turns"),
        ("config set runtime.profile gaurded", "guarded"),
        ("init --template startr", "starter"),
        ("run x --provider anthopic", "anthropic"),
        ("completion bsh", "bash"),
    ],
)
def test_a_misspelled_word_gets_a_suggestion(
    line: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert run(["init", "--provider", "offline"]) == 0
    capsys.readouterr()

    assert run(line.split()) != 0

    shown = capsys.readouterr().err
    assert f"Did you mean '{meant}'?" in shown, shown
