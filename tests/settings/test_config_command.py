"""`agent config`: what it writes, prints and refuses."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import jsonschema
import pytest
import yaml

from metier.cli.main import run
from metier.settings.keys import all_leaves, variables_of
from metier.settings.resolution import load_settings
from metier.settings.sections import Settings

SPECIFIED = """
model:
  provider: anthropic
  name: claude-sonnet-4-5
  max_tokens: 4096
  max_context_tokens: 32000
  response_headroom_tokens: 2000
  structured_output_mode: native_with_json_fallback
  providers:
    anthropic:
      api_key_env: ANTHROPIC_API_KEY
    gemini:
      api_key_env: GEMINI_API_KEY
runtime:
  profile: permissive
  shell_linux: /bin/bash
  shell_windows: pwsh
  timeout_seconds: 120
  max_turns: 8
  max_llm_retries: 3
  retry_base_delay_seconds: 1.0
  retry_max_delay_seconds: 8.0
  on_step_failure: retry_once_then_fallback_then_abort
  signal_grace_seconds: 10
skills:
  dir: ./skills
  prefilter_top_k: 8
  prefilter_min_score: 55  # rapidfuzz normalized score on 0-100 scale
  prefilter_zero_candidate_strategy: fallback_all_skills
  disclosure_max_reference_bytes: 120000
  disclosure_max_reference_tokens: 4000
logging:
  level: info
  jsonl_dir: ./runs
  run_id_pattern: "YYYYMMDD-HHMMSS-<short-uuid>"
  debug_llm_bodies: false
  sanitize_control_chars: true
  redact_secrets: true
"""


def names(folder: Path) -> list[str]:
    """Return the names except for the home folder, which records files created by the user."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".agent")


def load(folder: Path) -> Settings:
    return load_settings(flags={}, environ={}, cwd=folder, home=folder, config=None).settings


def schema_accepts(text: str, capsys: pytest.CaptureFixture[str]) -> bool:
    """Return an editor's problems with the text."""
    assert run(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    try:
        jsonschema.validate(yaml.safe_load(text), schema, cls=jsonschema.Draft202012Validator)
    except jsonschema.ValidationError:
        return False
    return True


def test_the_specified_file_loads_and_matches_the_defaults(place: Path) -> None:
    (place / "agent.yaml").write_text(SPECIFIED, encoding="utf-8")

    assert load(place) == Settings()


def test_init_writes_a_valid_file_with_the_defaults(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "init"]) == 0
    captured = capsys.readouterr()
    assert run(["config", "validate", "--file", "agent.yaml"]) == 0

    assert (captured.out, captured.err) == ("", "Wrote agent.yaml\n")
    assert load(place) == Settings()
    assert names(place) == ["agent.yaml"]


def test_init_explains_every_setting(place: Path) -> None:
    run(["config", "init"])

    text = " ".join((place / "agent.yaml").read_text(encoding="utf-8").replace("#", " ").split())

    for row in all_leaves().values():
        name = row.key.rpartition(".")[2]
        assert f"{name}: {row.shown_default}" in text
        assert row.description in text
        assert all(word in text for word in (*row.allowed, *row.variables))


def test_init_does_not_overwrite_without_force(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "agent.yaml"
    file.write_text("mine", encoding="utf-8")
    file.chmod(0o600)

    refused = run(["config", "init"])
    kept = file.read_text(encoding="utf-8")
    forced = run(["config", "init", "--force"])

    assert (refused, kept, forced) == (2, "mine", 0)
    assert capsys.readouterr().err.startswith("error: 'agent.yaml' already exists\nhint: Add --force")
    assert load(place) == Settings()
    assert file.stat().st_mode & 0o777 == 0o600
    assert names(place) == ["agent.yaml"]


def test_init_does_not_write_through_a_broken_link(place: Path) -> None:
    (place / "agent.yaml").symlink_to("elsewhere.yaml")

    assert run(["config", "init"]) == 2
    assert not (place / "elsewhere.yaml").exists()


def test_forced_init_keeps_a_link_and_replaces_its_target(place: Path) -> None:
    (place / "real.yaml").write_text("mine", encoding="utf-8")
    (place / "agent.yaml").symlink_to("real.yaml")

    assert run(["config", "init", "--force"]) == 0
    assert (place / "agent.yaml").is_symlink()
    assert load(place) == Settings()


def test_exactly_one_of_many_concurrent_inits_writes(place: Path) -> None:
    start = Barrier(8)

    def init() -> int:
        start.wait()
        return run(["config", "init"])

    with ThreadPoolExecutor(8) as pool:
        codes = [call.result() for call in [pool.submit(init) for _ in range(8)]]

    assert sorted(codes) == [0] + [2] * 7
    assert load(place) == Settings()
    assert names(place) == ["agent.yaml"]


def test_init_creates_missing_parent_folders(place: Path) -> None:
    assert run(["config", "init", "deep/er/my settings.yaml"]) == 0
    assert run(["config", "validate", "--file", "deep/er/my settings.yaml"]) == 0


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("folder", "'folder' is a directory"),
        ("file/agent.yaml", "file' is not a directory"),
        ("x" * 300, "cannot be written: File name too long"),
        ("loop/agent.yaml", "loop' is not a directory"),
    ],
)
def test_init_reports_why_it_cannot_write(
    path: str, reason: str, *, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "folder").mkdir()
    (place / "file").touch()
    (place / "loop").symlink_to("loop")

    assert run(["config", "init", path]) == 2
    assert reason in capsys.readouterr().err
    assert names(place) == ["file", "folder", "loop"]
    assert names(place / "folder") == []


def test_validate_as_json_has_every_problem(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "agent.yaml"
    file.write_text("model:\n  nmae: x\n  max_tokens: 0\n", encoding="utf-8")

    code = run(["config", "validate", "--json"])

    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert (code, captured.err) == (2, "")
    assert (answer["valid"], answer["file"]) == (False, str(file))
    assert [(problem["code"], problem["line"]) for problem in answer["problems"]] == [
        ("unknown_key", 2),
        ("bad_value", 3),
    ]


def test_valid_file_as_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a.yaml").write_text("model: {}\n", encoding="utf-8")

    assert run(["config", "validate", "--json", "--file", "a.yaml"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "file": str(place / "a.yaml"), "problems": []}


def test_show_lists_every_setting_with_its_source(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "agent.yaml").write_text("runtime:\n\n  max_turns: 3\n", encoding="utf-8")
    monkeypatch.setenv("SHELL_TOOL_ALLOWED_PREFIXES", "git status, ls")

    assert run(["config", "show", "--origin"]) == 0

    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert list(lines) == list(all_leaves())
    assert lines["runtime.max_turns"] == "3 file agent.yaml:3"
    assert lines["shell.allowed_prefixes"] == '["git status", ls] environment SHELL_TOOL_ALLOWED_PREFIXES'
    assert lines["model.name"] == "claude-sonnet-4-5 default"


def test_show_as_json_is_the_tree_of_the_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["settings"] == json.loads(Settings().model_dump_json())
    assert "origins" not in answer


def test_unknown_variable_gets_a_warning_with_a_suggestion(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AGENT_MODLE_NAME", "AGENT_PYTHON", "AGENT_IDEMPOTENCY_KEY", "AGENT_MY_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AGENT_MODEL_PROVIDERS_OPENAI_API_KEY_ENV", "AGENT_MY_KEY")

    assert run(["config", "show"]) == 0

    captured = capsys.readouterr()
    assert captured.err == (
        "warning: Environment variable AGENT_MODLE_NAME is not a setting [unknown_variable] "
        "(Did you mean 'AGENT_MODEL_NAME'?)\n"
    )
    assert "AGENT_MODLE_NAME" not in captured.out


def test_schema_accepts_what_init_writes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["config", "init"])

    assert schema_accepts((place / "agent.yaml").read_text(encoding="utf-8"), capsys)
    assert schema_accepts(SPECIFIED, capsys)


@pytest.mark.parametrize(
    "text",
    [
        "modle: {}",
        "model: {nmae: x}",
        "model: {provider: other}",
        "model: {max_tokens: 0}",
        "model: {max_tokens: 1.5}",
        "model: {providers: {openai: {base_url: 'localhost:80'}}}",
        "shell: {enabled: 1}",
        "skills: {enabled: some}",
        "skills: {prefilter_min_score: 101}",
        "store: {database_url_env: 'a b'}",
    ],
)
def test_schema_rejects_values_rejected_by_the_loader(
    text: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "agent.yaml").write_text(text, encoding="utf-8")

    assert not schema_accepts(text, capsys)
    assert run(["config", "validate"]) == 2


def test_every_setting_has_a_description_and_its_variable() -> None:
    for key, row in all_leaves().items():
        assert row.key == key
        assert row.description[0].isupper()
        assert row.description.endswith(".")
        assert row.variables == variables_of(row.key)
        assert row.variables[0] == "AGENT_" + row.key.replace(".", "_").upper()
        assert row.type


@pytest.mark.parametrize("args", [["config"], ["config", "--help"], ["config", "show", "--help"]])
def test_config_commands_have_help(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(args)

    assert "Usage: agent config" in "".join(capsys.readouterr())
