"""Conventions of every bundled skill and its scripts."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from skill_scripts import run_script
from uv import find_uv_bin

import metier

BUNDLED = Path(metier.__file__).parent / "bundled"
DEMO = {
    "workspace-inventory",
    "keyword-search-extractor",
    "content-summarizer",
    "task-checklist-builder",
    "markdown-report-drafter",
}
CALLABLE = {"schema-infer", "decision-record"}
MARKETS = set("status markets market orderbook trades search events event series-list series".split())  # noqa: SIM905
SKILLS = sorted(path.parent for path in BUNDLED.glob("*/SKILL.md"))
SCRIPTS = sorted(BUNDLED.glob("*/scripts/*.py"))
PLAIN = [script for script in SCRIPTS if script.parent.parent.name != "kalshi-markets"]
PLACEHOLDERS = {"workspace", "task", "previous", "artifacts", "keywords"}


def name_of(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.stem}" if path.suffix else path.name


def front_matter(skill: Path) -> dict[str, Any]:
    _, head, _ = (skill / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    return cast("dict[str, Any]", yaml.safe_load(head))


def requirements(script: Path) -> dict[str, Any]:
    block = re.search(r"(?m)^# /// script\n((?:# .*\n)+)# ///$", script.read_text(encoding="utf-8"))
    assert block, f"{script.name} has no inline metadata"
    return tomllib.loads("".join(line[2:] + "\n" for line in block[1].splitlines()))


def test_the_packs_are_complete() -> None:
    assert {skill.name for skill in SKILLS} == DEMO | CALLABLE | {"kalshi-markets", "hello-extended"}
    assert {script.stem for script in (BUNDLED / "kalshi-markets" / "scripts").glob("*.py")} == MARKETS


@pytest.mark.parametrize("skill", SKILLS, ids=name_of)
def test_front_matter_satisfies_the_specification(skill: Path) -> None:
    fields = front_matter(skill)
    assert fields["name"] == skill.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 1 <= len(fields["name"]) <= 64
    assert 40 <= len(fields["description"]) <= 500
    assert "Use" in fields["description"], "a description says when to use the skill"
    assert len(fields.get("compatibility", "x")) <= 500
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in fields["metadata"].items())
    assert re.fullmatch(r"\d+\.\d+\.\d+", fields["version"])
    assert fields["tags"]


@pytest.mark.parametrize("skill", SKILLS, ids=name_of)
def test_the_body_is_short_and_names_files_that_exist(skill: Path) -> None:
    text = (skill / "SKILL.md").read_text(encoding="utf-8")
    assert len(text) < 4000, "a body that is longer belongs into references"
    for path in re.findall(r"`(references/[\w./-]+)`", text):
        assert (skill / path).is_file()
    if skill.name in DEMO | CALLABLE:
        listed = set(re.findall(r"`references/([\w.-]+)`", text))
        assert listed == {path.name for path in (skill / "references").iterdir()}


@pytest.mark.parametrize("skill", sorted(DEMO))
def test_a_demo_skill_can_be_run_without_a_model(skill: str) -> None:
    entry = front_matter(BUNDLED / skill)["entrypoint"]
    assert (BUNDLED / skill / "scripts" / f"{entry['script']}.py").is_file()
    used = {name for argument in entry["args"] for name in re.findall(r"\{(\w+)\}", argument)}
    assert used
    assert used <= PLACEHOLDERS


@pytest.mark.parametrize("skill", sorted(CALLABLE))
def test_code_of_a_callable_skill_is_short_and_needs_only_python(skill: str) -> None:
    for module in (BUNDLED / skill).glob("*.py"):
        text = module.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 500
        imported = re.findall(r"(?m)^(?:from|import) ([\w.]+)", text)
        assert {name.partition(".")[0] for name in imported} - {""} <= sys.stdlib_module_names


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_declares_its_dependencies(script: Path) -> None:
    declared = requirements(script)
    assert declared["requires-python"] == ">=3.12"
    names = {re.split(r"[<>=~!]", text)[0] for text in declared["dependencies"]}
    assert names == ({"click", "httpx"} if script.parent.parent.name == "kalshi-markets" else set())


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_help_is_fast_and_explains_every_option(script: Path, script_python: Path) -> None:
    python = str(script_python) if script.parent.parent.name == "kalshi-markets" else sys.executable
    done = subprocess.run(
        [python, "-I", "-B", str(script), "--help"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout
    assert done.stderr == ""
    assert not re.findall(r"(?m)^  (--[\w-]+)$(?!\n {4})", done.stdout), "an option without a sentence"


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_an_invalid_option_prints_a_message_and_no_traceback(script: Path, script_python: Path) -> None:
    python = script_python if script.parent.parent.name == "kalshi-markets" else None
    done = run_script(script, "--no-such-option", "--json", python=python, env={})
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    assert "no-such-option" in done.err


def test_no_bytecode_or_stray_files_are_shipped() -> None:
    # Of a workspace to begin with, settings and rules are part.
    allowed = {".py", ".md", ".html", ".yaml", ".json", ".gz"}
    listed = subprocess.run(["git", "ls-files", str(BUNDLED)], cwd=BUNDLED, capture_output=True, text=True, check=False)
    assert {Path(line).suffix for line in listed.stdout.splitlines()} <= allowed


def test_uv_runs_a_script_like_the_script_tools(tmp_path: Path) -> None:
    script = BUNDLED / "kalshi-markets" / "scripts" / "status.py"
    base = getattr(sys, "_base_executable", sys.executable)
    command = [find_uv_bin(), "run", "--no-project", "--no-config", "--no-env-file", "--script", "--python", base]
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    environment |= {"KALSHI_API_BASE_URL": "http://127.0.0.1:9"}
    done = subprocess.run(
        [*command, str(script), "--json"], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Cannot reach 'http://127.0.0.1:9" in done.stderr
