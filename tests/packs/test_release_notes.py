"""The pack `release-notes`, on real repositories: with and without a model, and with invalid notes."""

import json

import pytest
from model_server import ModelServer, calls, says
from pack_folder import PackFolder, states

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(folder: PackFolder) -> PackFolder:
    folder.copy("release-notes")
    folder.git("init", "--quiet", "--initial-branch=main")
    folder.commit("Begin")
    folder.git("tag", "v1.0.0")
    return folder


def test_notes_are_written_and_checked_without_a_model(repository: PackFolder) -> None:
    added = repository.commit("feat(cli): add *colours*")
    fixed = repository.commit("Fix the end of the line")
    broken = repository.commit("refactor!: new file format\n\nBREAKING CHANGE: run migrate\nfirst")
    repository.git("checkout", "--quiet", "-b", "side")
    repository.commit("docs: tell of colours")
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "-m", "Merge side", "side")

    outcome = repository.run_task("release-notes", "--provider", "offline", "--input", "version=2.0.0")

    assert outcome["status"] == "completed"
    assert states(outcome) == [("TASK.md", "succeeded"), ("draft.md", "succeeded"), ("check.md", "succeeded")]
    notes = repository.read("release/NOTES.md")
    assert notes.splitlines()[1] == "# 2.0.0"
    headings = [line for line in notes.splitlines() if line.startswith("## ")]
    assert headings == ["## Breaking changes", "## Added", "## Fixed", "## Documentation"]
    assert f"- New file format ({broken})\n  run migrate first" in notes
    assert f"- **cli**: Add \\*colours\\* ({added})" in notes
    assert f"- Fix the end of the line ({fixed})" in notes
    assert "Merge side" not in notes
    assert repository.read("release/check.txt") == "ok: 4 commits\n"


def test_the_commits_can_start_at_another_point_and_without_a_tag(repository: PackFolder) -> None:
    repository.git("tag", "--delete", "v1.0.0")
    repository.commit("Add one")
    start = repository.git("rev-parse", "HEAD")
    repository.commit("Add two")

    repository.run_task("release-notes", "--provider", "offline", "--input", f"since={start}")
    few = json.loads(repository.read("release/commits.json"))
    repository.run_task("release-notes", "--provider", "offline")
    all_of_them = json.loads(repository.read("release/commits.json"))

    assert [commit["subject"] for commit in few["commits"]] == ["Add two"]
    assert [commit["subject"] for commit in all_of_them["commits"]] == ["Begin", "Add one", "Add two"]


def test_a_release_without_commits_fails_at_the_first_step_and_reports_it(repository: PackFolder) -> None:
    done = repository.agent("task", "run", "release-notes", "--provider", "offline")

    assert done.returncode == 1
    events = "".join(path.read_text("utf-8") for path in repository.path.glob("runs/*/events.jsonl"))
    assert "There are no commits since v1.0.0" in events


def test_notes_edited_by_the_user_are_kept(repository: PackFolder) -> None:
    repository.commit("Add one")
    repository.run_task("release-notes", "--provider", "offline")
    repository.write("release/NOTES.md", repository.read("release/NOTES.md").replace("Add one", "My own words"))
    repository.commit("Add two")

    outcome = repository.run_task("release-notes", "--provider", "offline")

    assert states(outcome)[1] == ("draft.md", "failed")
    assert "My own words" in repository.read("release/NOTES.md")


def test_a_model_writes_notes_that_are_checked_against_the_commits(repository: PackFolder, model: ModelServer) -> None:
    short = repository.commit("Add a thing")
    root = str(repository.path)
    repository.use(model)
    notes = "# 2.0.0\n\n## Added\n\n- You can now have a thing ({})\n"
    check = calls(
        "script_run", skill_name="notes-checker", script_name="check", json=True,
        args=["--commits", f"{root}/release/commits.json", "--notes", f"{root}/release/NOTES.md",
              "--out", f"{root}/release/check.txt"],
    )  # fmt: skip
    collect = calls(
        "script_run", skill_name="commit-collector", script_name="collect", json=True,
        args=["--repository", root, "--version", "2.0.0", "--out", f"{root}/release/commits.json"],
    )  # fmt: skip
    model.follow(
        collect,
        says("One commit is collected."),
        calls("Write", path="release/NOTES.md", content=notes.format("abcdef0")),
        says("The notes are written."),
        says("All is well."),  # without a check: the file is not there, and it is told so
        check,
        calls("Read", path="release/NOTES.md"),
        calls("Edit", path="release/NOTES.md", old="abcdef0", new=short),
        check,
        says("The notes hold."),
    )

    outcome = repository.run_task("release-notes", "--input", "version=2.0.0")

    assert outcome["status"] == "completed", outcome
    assert f"- You can now have a thing ({short})" in repository.read("release/NOTES.md")
    assert repository.read("release/check.txt") == "ok: 1 commits\n"
    said = json.dumps(model.received)
    assert "abcdef0 is none of the commits" in said
    assert f"{short} is left out: Add a thing" in said


def test_an_announcement_is_json_by_its_schema_after_one_repair(repository: PackFolder, model: ModelServer) -> None:
    repository.commit("Add a thing")
    repository.run_task("release-notes", "--provider", "offline")
    repository.use(model)
    good = {"subject": "A thing is here", "highlights": ["A thing"], "body": "From today on you can have a thing."}
    model.follow(calls("Read", path="release/NOTES.md"), says("It is great!"), says(json.dumps(good)))

    outcome = repository.run_task("announce", "--input", "audience=operators")

    assert outcome["status"] == "completed", outcome
    assert json.loads(outcome["result"]) == good
    assert "announcement for operators" in json.dumps(model.received[0])


def test_rules_restrict_the_editor_to_its_folder(repository: PackFolder) -> None:
    verdicts = {
        path: json.loads(
            repository.agent(
                "policy", "explain", "Write", "--agent", "release-editor", "--json",
                "--args", json.dumps({"path": path, "content": "x"}),
            ).stdout
        )["verdict"]
        for path in ("release/NOTES.md", "src/main.py", ".agent/policy.yaml")
    }  # fmt: skip

    assert verdicts == {"release/NOTES.md": "allow", "src/main.py": "ask", ".agent/policy.yaml": "deny"}
