"""Bad settings: exit code 2, every problem at once with file and line, and nothing written."""

import os
from pathlib import Path

import pytest

from metier.cli.main import run

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 10)}]\n" for old, new in zip("abcde", "bcdef", strict=True)
)

BAD_FILES: dict[str, tuple[bytes, list[str]]] = {
    "unknown key": (
        b"model:\n  nmae: x\n",
        ["agent.yaml:2: error: Unknown key 'model.nmae' [unknown_key] (Did you mean 'name'?)"],
    ),
    "unknown section": (
        b"\nskils:\n  dir: x\n",
        ["agent.yaml:2: error: Unknown key 'skils' [unknown_key] (Did you mean 'skills'?)"],
    ),
    "key in the wrong section": (
        b"model:\n  max_turns: 3\n",
        ["agent.yaml:2: error: Unknown key 'model.max_turns' [unknown_key] (Did you mean 'runtime.max_turns'?)"],
    ),
    "key without a section": (
        b"provider: gemini\n",
        ["agent.yaml:1: error: Unknown key 'provider' [unknown_key] (Did you mean 'model.provider'?)"],
    ),
    "key like no other": (
        b"store:\n  zzz: 1\n",
        ["agent.yaml:2: error: Unknown key 'store.zzz' [unknown_key] (Known keys: backend, database_url_env)"],
    ),
    "section like no other": (
        b"zzz: 1\n",
        [
            (
                "agent.yaml:1: error: Unknown key 'zzz' [unknown_key] "
                "(Known keys: model, runtime, skills, routing, shell, sandbox, mcp, web_search, "
                "hooks, chat, store, worker, server, notify, logging, plugins)"
            )
        ],
    ),
    "merge key": (
        b"model: &m\n  name: x\nruntime:\n  <<: *m\n",
        [
            "agent.yaml:1: error: Anchor '&m' is not supported [yaml_anchor] (Write the value out where it is used)",
            "agent.yaml:4: error: Alias '*m' is not supported [yaml_alias] (Write the value out)",
            "agent.yaml:4: error: The merge key '<<' is not supported [yaml_merge_key] (Write the fields out)",
            (
                "agent.yaml:4: error: Unknown key 'runtime.<<' [unknown_key] (Known keys: agent, profile, "
                "shell_linux, shell_windows, timeout_seconds, max_turns, max_cost_usd, on_limit, "
                "max_llm_retries, retry_base_delay_seconds, retry_max_delay_seconds, on_step_failure, "
                "max_delegation_depth, delegation_share, max_children_per_call, max_parallel_children, "
                "approval_expiry_hours, signal_grace_seconds)"
            ),
        ],
    ),
    "number for the name of a model": (
        b"model:\n  name: 5\n",
        ["agent.yaml:2: error: model.name must be the name of a model, not '5' [bad_value]"],
    ),
    "text for a whole number": (
        b"model:\n  max_tokens: many\n",
        ["agent.yaml:2: error: model.max_tokens must be a whole number, not 'many' [bad_value]"],
    ),
    "fraction for a whole number": (
        b"model:\n  max_tokens: 1.5\n",
        ["agent.yaml:2: error: model.max_tokens must be a whole number, not '1.5' [bad_value]"],
    ),
    "text for a number": (
        b"runtime:\n  timeout_seconds: soon\n",
        ["agent.yaml:2: error: runtime.timeout_seconds must be a number, not 'soon' [bad_value]"],
    ),
    "number for a switch": (
        b"shell:\n  enabled: 1\n",
        ["agent.yaml:2: error: shell.enabled must be true or false, not '1' [bad_value]"],
    ),
    "list for text": (
        b"model:\n  name: [a]\n",
        ["agent.yaml:2: error: model.name must be text, not a list [not_text]"],
    ),
    "section for a number": (
        b"model:\n  max_tokens:\n    x: 1\n",
        ["agent.yaml:2: error: model.max_tokens must be a whole number, not a mapping [bad_value]"],
    ),
    "limits of the shell that let nothing through": (
        b"shell:\n  timeout_ms: -5\n  max_output_chars: 0\n",
        [
            "agent.yaml:2: error: shell.timeout_ms must be at least 1, not '-5' [bad_value]",
            "agent.yaml:3: error: shell.max_output_chars must be at least 1, not '0' [bad_value]",
        ],
    ),
    "text for a list": (
        b"shell:\n  allowed_prefixes: git status\n",
        [
            (
                "agent.yaml:2: error: shell.allowed_prefixes must be a list, not 'git status' [not_a_list] "
                "(Write a list in brackets, separated by commas)"
            )
        ],
    ),
    "list in a list": (
        b"shell:\n  allowed_prefixes:\n    - ls\n    - [git]\n",
        ["agent.yaml:4: error: An item of shell.allowed_prefixes must be text [not_text]"],
    ),
    "value for a section": (
        b"logging: 5\n",
        [
            (
                "agent.yaml:1: error: logging must be a mapping [not_a_mapping] "
                "(It has keys such as 'level', indented below it)"
            )
        ],
    ),
    "no value": (
        b"runtime:\n  profile:\n",
        [
            (
                "agent.yaml:2: error: runtime.profile has no value [no_value] "
                "(Add a value, or remove the line to use the default)"
            )
        ],
    ),
    "unknown word": (
        b"runtime:\n  profile: permisive\n",
        [
            (
                "agent.yaml:2: error: runtime.profile must be 'permissive', 'guarded' or 'strict', "
                "not 'permisive' [bad_value] (Did you mean 'permissive'?)"
            )
        ],
    ),
    "word in a list": (
        b"skills:\n  enabled: [all, mine]\n",
        [
            (
                "agent.yaml:2: error: skills.enabled must be a list of names or the word 'all' alone, not 'all, mine' "
                "[bad_value]"
            )
        ],
    ),
    "too low": (
        b"runtime:\n  max_turns: 0\n",
        ["agent.yaml:2: error: runtime.max_turns must be at least 1, not '0' [bad_value]"],
    ),
    "too high": (
        b"skills:\n  prefilter_min_score: 101\n",
        ["agent.yaml:2: error: skills.prefilter_min_score must be at most 100, not '101' [bad_value]"],
    ),
    "not positive": (
        b"runtime:\n  max_cost_usd: 0\n",
        ["agent.yaml:2: error: runtime.max_cost_usd must be more than 0, not '0' [bad_value]"],
    ),
    "not a number": (
        b"runtime:\n  timeout_seconds: nan\n",
        ["agent.yaml:2: error: runtime.timeout_seconds must be a finite number, not 'nan' [bad_value]"],
    ),
    "empty text": (b"model:\n  name: ''\n", ["agent.yaml:2: error: model.name must not be empty [bad_value]"]),
    "two settings that disagree": (
        b"model:\n  max_context_tokens: 1000\n",
        [
            (
                "agent.yaml:2: error: model.response_headroom_tokens must be less than max_context_tokens, "
                "which is 1000, not '2000' [bad_value]"
            )
        ],
    ),
    "delays that disagree": (
        b"runtime:\n  retry_base_delay_seconds: 5\n  retry_max_delay_seconds: 2\n",
        [
            (
                "agent.yaml:3: error: runtime.retry_max_delay_seconds must be at least retry_base_delay_seconds, "
                "which is 5, not '2' [bad_value]"
            )
        ],
    ),
    "bad address": (
        b"model: {providers: {openai: {base_url: 'localhost:80'}}}\n",
        [
            (
                "agent.yaml:1: error: model.providers.openai.base_url must be an address that begins with http:// or "
                "https://, not 'localhost:80' [bad_value]"
            )
        ],
    ),
    "duplicate key": (
        b"model:\n  name: a\n  max_tokens: 1\n  name: b\n",
        ["agent.yaml:4: error: Key 'name' is repeated; it is first in line 2 [duplicate_key] (Keep one of them)"],
    ),
    "top level is a list": (
        b"- a\n",
        [("agent.yaml:1: error: The file must be a mapping [not_a_mapping] (Start with a section such as `model:`)")],
    ),
    "top level is text": (
        b"\nhello\n",
        [("agent.yaml:2: error: The file must be a mapping [not_a_mapping] (Start with a section such as `model:`)")],
    ),
    "not UTF-8": (
        b"model:\n  name: caf\xe9\n",
        ["agent.yaml:2: error: The file is not UTF-8 text [not_utf8] (Save it as UTF-8)"],
    ),
    "UTF-16": (
        "model: {}".encode("utf-16"),
        ["agent.yaml:1: error: The file is not UTF-8 text [not_utf8] (Save it as UTF-8)"],
    ),
    "NUL byte": (
        b"model:\n  name: a\n\x00\n",
        [("agent.yaml:3: error: The file contains the control character U+0000 [control_character] (Remove it)")],
    ),
    "too large": (
        b"# " + b"x" * 70_000,
        ["agent.yaml: error: The file is larger than 65536 bytes [file_too_large]"],
    ),
}

PROVIDERS = "'anthropic', 'gemini', 'openai', 'offline' or 'a2a'"


def refused(args: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run, check that it was rejected without side effects, and return its messages."""
    before = sorted(place.rglob("*"))

    code = run(args)

    captured = capsys.readouterr()
    *problems, error, hint = captured.err.splitlines()
    assert code == 2
    assert captured.out == ""
    assert error.startswith("error: The settings have ")
    assert hint.startswith("hint: Nothing was started")
    assert sorted(place.rglob("*")) == before
    return problems


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", ["show", "validate"])
def test_invalid_file_is_rejected_with_its_line(
    name: str, command: str, *, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, expected = BAD_FILES[name]
    (place / "agent.yaml").write_bytes(content)

    assert refused(["config", command], place, capsys) == expected


def test_yaml_syntax_error_is_reported_with_its_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "agent.yaml").write_text("model:\n  name: a\n  provider: [gemini\n", encoding="utf-8")

    (problem,) = refused(["config", "validate"], place, capsys)

    assert problem.startswith("agent.yaml:4: error: YAML syntax error: ")


def test_anchor_bomb_is_rejected_immediately(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "agent.yaml").write_text(BOMB, encoding="utf-8")

    problems = refused(["config", "validate"], place, capsys)

    assert any("The YAML has more than 10000 values [yaml_too_many_nodes]" in problem for problem in problems)
    assert len(problems) < 50


def test_directory_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "agent.yaml").mkdir()

    expected = "agent.yaml: error: This is a directory, not a file [not_a_file] (Give the path of the agent.yaml in it)"
    assert refused(["config", "show"], place, capsys) == [expected]


def test_broken_link_is_rejected_and_not_skipped(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "agent.yaml").symlink_to("gone.yaml")

    (problem,) = refused(["config", "show"], place, capsys)

    assert problem.startswith("agent.yaml: error: The file cannot be read: No such file or directory [unreadable]")
    assert "symbolic link whose target is missing" in problem


def test_unreadable_file_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "closed.yaml"
    file.write_text("model: {}\n", encoding="utf-8")
    file.chmod(0)
    # Nothing is unreadable for root, but nobody can read a file inside a file.
    name = "closed.yaml/agent.yaml" if os.geteuid() == 0 else "closed.yaml"

    (problem,) = refused(["config", "show", "--config", name], place, capsys)

    assert problem.startswith(f"{name}: error: The file cannot be read: ")


def test_discovered_pipe_is_rejected_without_blocking(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(place / "agent.yaml")

    assert refused(["config", "show"], place, capsys) == ["agent.yaml: error: This is not a regular file [not_a_file]"]


def test_missing_named_file_is_rejected(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = refused(["config", "validate", "--file", "other.yaml"], place, capsys)

    assert problem == (
        "other.yaml: error: The file cannot be read: No such file or directory [unreadable] "
        "(Check the path, or run `agent config init` to create one)"
    )


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"# only a comment\n", b"---\n", b"null\n", b"\xef\xbb\xbf", b"model:\n"]
)
def test_empty_file_yields_the_defaults(content: bytes, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "agent.yaml").write_bytes(content)

    code = run(["config", "show", "--origin"])

    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    assert all(line.endswith("  default") for line in captured.out.splitlines())


def test_all_problems_of_file_and_environment_are_listed_together(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """\
model:
  provider: antropic
  nmae: x
  max_tokens: 0
runtime:
  max_turns: 3
  max_turns: 4

logging: loud
shell:
  enabled: maybe
  timeout_ms: 1.5
"""
    (place / "agent.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("AGENT_STORE_BACKEND", "mysql")
    monkeypatch.setenv("SCRIPT_TIMEOUT", "-1")
    monkeypatch.setenv("AGENT_MODEL_NAM", "x")

    problems = refused(["config", "validate"], place, capsys)

    assert [problem.partition(" [")[0] for problem in problems] == [
        f"agent.yaml:2: error: model.provider must be {PROVIDERS}, not 'antropic'",
        "agent.yaml:3: error: Unknown key 'model.nmae'",
        "agent.yaml:4: error: model.max_tokens must be at least 1, not '0'",
        "agent.yaml:7: error: Key 'max_turns' is repeated; it is first in line 6",
        "agent.yaml:9: error: logging must be a mapping",
        "agent.yaml:11: error: shell.enabled must be true or false, not 'maybe'",
        "agent.yaml:12: error: shell.timeout_ms must be a whole number, not '1.5'",
        "error: Environment variable SCRIPT_TIMEOUT must be more than 0, not '-1'",
        "error: Environment variable AGENT_STORE_BACKEND must be 'sqlite' or 'postgres', not 'mysql'",
        "warning: Environment variable AGENT_MODEL_NAM is not a setting",
    ]


def test_invalid_value_in_the_file_is_reported_even_if_a_variable_overrides_it(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "agent.yaml").write_text("model:\n  max_tokens: x\n", encoding="utf-8")
    monkeypatch.setenv("AGENT_MODEL_MAX_TOKENS", "5")

    assert len(refused(["config", "show"], place, capsys)) == 1


def test_values_that_only_fit_together_across_sources_are_accepted(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "agent.yaml").write_text("model:\n  response_headroom_tokens: 50000\n", encoding="utf-8")
    monkeypatch.setenv("AGENT_MODEL_MAX_CONTEXT_TOKENS", "200000")

    assert run(["config", "validate"]) == 0


def test_variable_that_conflicts_with_other_settings_is_named(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_MAX_CONTEXT_TOKENS", "100")

    (problem,) = refused(["config", "show"], place, capsys)

    assert "environment AGENT_MODEL_MAX_CONTEXT_TOKENS" in problem


@pytest.mark.parametrize("text", ["true", "False", "yes", "NO", "on", "Off", '"true"'])
def test_booleans_accept_words(text: str, place: Path) -> None:
    (place / "agent.yaml").write_text(f"shell:\n  enabled: {text}\n", encoding="utf-8")

    assert run(["config", "validate"]) == 0


def test_quoted_numbers_are_numbers(place: Path) -> None:
    (place / "agent.yaml").write_text("model:\n  max_tokens: '5'\n  timeout_seconds: \"2.5\"\n", encoding="utf-8")

    assert run(["config", "validate"]) == 0
