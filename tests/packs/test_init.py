"""`agent init`: its files are valid, run without a model, and replace nothing."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pack_folder import PackFolder, states

from metier.cli.main import run
from metier.runtime.workspace.templates import TEMPLATES_FOLDER, list_templates

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("template", [each.name for each in list_templates()])
def test_a_template_is_valid_and_its_rules_apply(folder: PackFolder, template: str) -> None:
    assert folder.agent("init", "--template", template).returncode == 0

    for command in (["validate"], ["task", "validate"], ["policy", "test"], ["config", "validate"]):
        done = folder.agent(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stdout


def test_the_starter_runs_without_a_model(folder: PackFolder) -> None:
    folder.agent("init")

    outcome = folder.run_task("review", "--provider", "offline", "--input", "title=First week")

    assert outcome["status"] == "completed", outcome
    assert states(outcome) == [("TASK.md", "succeeded"), ("open.md", "succeeded"), ("write.md", "succeeded")]
    review = folder.read("review.md")
    assert "# First week" in review
    assert "- [ ] Replace this note with your own (notes/welcome.md:6)" in review
    assert folder.run_task("review", "--provider", "offline")["status"] == "completed", "its own review is renewed"


def test_an_existing_review_is_not_replaced(folder: PackFolder) -> None:
    folder.agent("init")
    folder.write("review.md", "mine\n")

    outcome = folder.run_task("review", "--provider", "offline")

    assert states(outcome)[2] == ("write.md", "failed")
    assert folder.read("review.md") == "mine\n"


def test_init_lists_written_files_and_next_steps(folder: PackFolder) -> None:
    done = folder.agent("init", "new/place")

    written = done.stdout.splitlines()
    assert "new/place/.agent/tasks/review/TASK.md" in written
    assert all((folder.path / each).is_file() for each in written)
    assert done.stderr.splitlines()[:2] == [f"Wrote {len(written)} files. Next steps:", "  cd new/place"]
    assert "agent task run review --provider offline" in done.stderr


@pytest.mark.parametrize("there", ["agent.yaml", ".agent/policy.yaml", "notes/welcome.md"])
def test_nothing_is_written_if_one_file_exists(
    folder: PackFolder, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    folder.write(there, "mine\n")

    assert run(["init"]) == 2

    assert f"'{there}' exists" in capsys.readouterr().err
    files = [path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()]
    assert files == [there]
    assert folder.read(there) == "mine\n"


def test_a_dangling_link_counts_as_an_existing_file(folder: PackFolder) -> None:
    (folder.path / "agent.yaml").symlink_to("elsewhere.yaml")

    assert run(["init"]) == 2
    assert not (folder.path / "elsewhere.yaml").exists()


def test_a_conflicting_file_leaves_no_partial_output(folder: PackFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write("context", "a file\n")

    assert run(["init"]) == 2

    assert "cannot be written to" in capsys.readouterr().err
    assert [path.name for path in folder.path.rglob("*") if path.is_file()] == ["context"]


def test_templates_are_listed_and_an_unknown_name_has_a_hint(
    folder: PackFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("starter  ")
    assert run(["init", "--list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["starter", "empty"]
    assert run(["init", "--template", "startr"]) == 2
    assert "Did you mean 'starter'?" in capsys.readouterr().err
    assert run(["init", "there", "--template", "empty", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 4


def test_every_template_is_known_and_its_skills_are_in_no_catalog(
    folder: PackFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path.name for path in TEMPLATES_FOLDER.iterdir()} == {each.name for each in list_templates()}
    assert run(["skills", "list", "--all"]) == 0
    assert "open-tasks" not in capsys.readouterr().out


def test_templates_are_in_the_wheel(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip

    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()

    expected = {f"metier/bundled/templates/{each.name}/{file}" for each in list_templates() for file in each.files}
    assert expected <= set(names)
