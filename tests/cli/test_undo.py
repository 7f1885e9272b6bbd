"""`agent undo`: workspace files are restored byte for byte, or a conflict is reported."""

import json
import os
import stat
from pathlib import Path

import pytest
from cloned_folder import git
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]
type Tree = dict[str, tuple[str, bytes, int]]


def read_tree(folder: Path) -> Tree:
    """Return every file and link of a workspace with content and mode, except for runs and git."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in {"runs", ".git"}:
            continue
        if path.is_symlink():
            found[name] = ("link", os.fsencode(path.readlink()), 0)
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
    return found


def bash(command: str) -> Reply:
    return calls("Bash", command=command)


@pytest.fixture(params=["git", "plain"])
def place(request: pytest.FixtureRequest, workspace: Workspace) -> Workspace:
    workspace.write("notes.md", "one\r\ntwo\r\n")
    workspace.write("docs/a.txt", "alpha\n")
    workspace.write("tool.sh", "#!/bin/sh\n").chmod(0o755)
    workspace.write("private.txt", "mine\n").chmod(0o600)
    workspace.write(".gitattributes", "* text=auto eol=crlf\n*.md filter=shout\n")
    (workspace.folder / "link").symlink_to("notes.md")
    if request.param == "git":
        git(workspace.folder, "init", "-q")
        git(workspace.folder, "add", "-A")
        git(workspace.folder, "commit", "-q", "-m", "all")
    return workspace


WORK = (
    calls("Write", path="new/deep/file.txt", content="new\n"),
    calls("Edit", path="docs/a.txt", old="alpha", new="beta"),
    bash("printf 'x' >> notes.md && rm tool.sh && mv docs/a.txt docs/b.txt && chmod 644 private.txt"),
    bash("rm link && ln -s docs link && mkdir -p made && echo 1 > made/here && rm private.txt"),
    says("Done"),
)


def test_every_kind_of_change_is_undone_and_can_be_restored(
    place: Workspace, model: ModelServer, capsys: Capture
) -> None:
    before = read_tree(place.folder)
    model.follow(*WORK)
    assert place.agent("run", "-q", "Work") == 0
    after = read_tree(place.folder)
    assert after != before

    assert place.agent("undo") == 0
    assert read_tree(place.folder) == before
    assert not (place.folder / "new").exists()

    assert place.agent("undo", "--to", "undo-1") == 0
    assert read_tree(place.folder) == after

    assert place.agent("undo", "--to", "3.1") == 0
    assert (place.folder / "docs/a.txt").read_text() == "beta\n"
    assert (place.folder / "new/deep/file.txt").exists()
    assert stat.S_IMODE((place.folder / "private.txt").stat().st_mode) == 0o600
    capsys.readouterr()
    assert place.agent("replay", "latest", "--execute") == 0
    assert place.event_types()[-2:] == ["undo_started", "undo_finished"]


def test_dry_run_shows_the_difference_and_changes_nothing(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write("a.txt", "old\n")
    model.follow(calls("Write", path="a.txt", content="new\n"), says("Done"))
    assert workspace.agent("run", "-q", "Work") == 0
    capsys.readouterr()

    assert workspace.agent("undo", "--dry-run") == 0

    err = capsys.readouterr().err
    assert "restore:     a.txt" in err
    assert "-new" in err
    assert "+old" in err
    assert "Not undone: what was sent over the network" in err
    assert (workspace.folder / "a.txt").read_text() == "new\n"


def test_file_changed_since_is_a_conflict_and_kept_without_confirmation(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write("a.txt", "old\n")
    workspace.write("b.txt", "old\n")
    model.follow(bash("echo new > a.txt; echo new > b.txt"), says("Done"))
    assert workspace.agent("run", "-q", "Work") == 0
    workspace.write("a.txt", "mine\n")
    capsys.readouterr()

    assert workspace.agent("undo") == 10

    said = capsys.readouterr().err
    assert "a.txt  changed since" in said
    assert "-mine" in said
    assert [(workspace.folder / name).read_text() for name in ("a.txt", "b.txt")] == ["mine\n", "new\n"]

    assert workspace.agent("undo", "--yes", "--json") == 0
    assert [(workspace.folder / name).read_text() for name in ("a.txt", "b.txt")] == ["old\n", "old\n"]
    assert workspace.agent("undo", "--to", "undo-1") == 0
    assert (workspace.folder / "a.txt").read_text() == "mine\n"


def test_file_ignored_by_git_is_not_restored_unless_a_tool_wrote_it(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".gitignore", "*.log\n")
    workspace.write("a.log", "old\n")
    workspace.write("b.log", "old\n")
    git(workspace.folder, "init", "-q")
    model.follow(bash("echo new > a.log"), calls("Write", path="b.log", content="new\n"), says("Done"))
    assert workspace.agent("run", "-q", "Work") == 0

    assert workspace.agent("undo") == 0

    assert (workspace.folder / "a.log").read_text() == "new\n"
    assert (workspace.folder / "b.log").read_text() == "old\n"


def test_folder_replaced_by_an_outside_link_is_not_written_through(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    workspace.write("docs/a.txt", "old\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    model.follow(calls("Write", path="docs/a.txt", content="new\n"), says("Done"))
    assert workspace.agent("run", "-q", "Work") == 0
    (workspace.folder / "docs/a.txt").unlink()
    (workspace.folder / "docs").rmdir()
    (workspace.folder / "docs").symlink_to(outside)

    workspace.agent("undo", "--yes")

    assert list(outside.iterdir()) == []


def test_run_without_changes_has_nothing_to_undo(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(bash("true"), says("Done"))
    assert workspace.agent("run", "-q", "Work") == 0
    capsys.readouterr()

    assert workspace.agent("undo") == 0

    assert "Nothing to undo" in capsys.readouterr().out
    assert workspace.agent("undo", "--to", "9.9") == 2


def test_steps_of_a_task_are_undone_with_it(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/tasks/tidy/TASK.md", "---\nname: Tidy\n---\nTidy up.\n")
    workspace.write("a.txt", "old\n")
    model.follow(calls("Write", path="a.txt", content="new\n"), says("Done"))
    workspace.write(".agent/policy.yaml", "tool_approvals:\n  rules:\n    - {tool: Write, allow: true}\n")
    assert workspace.agent("task", "run", "tidy", "-q") == 0
    assert (workspace.folder / "a.txt").read_text() == "new\n"

    assert workspace.agent("undo") == 0

    assert (workspace.folder / "a.txt").read_text() == "old\n"


def test_changes_of_each_step_are_shown_as_diffs(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    workspace.write("a.txt", "old\n")
    model.follow(bash("echo new > a.txt"), bash("true"), calls("Write", path="b.txt", content="b\n"), says("Done"))
    assert workspace.agent("run", "-q", "Work") == 0
    capsys.readouterr()

    assert workspace.agent("runs", "show", "latest", "--changes") == 0

    out = capsys.readouterr().out
    assert "step 1.1: Bash\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-old\n+new" in out
    assert "step 3.1: Write\n--- /dev/null\n+++ b/b.txt" in out
    assert "step 2.1" not in out


def test_json_names_every_file(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(bash("echo new > a.txt"), says("Done"))
    assert workspace.agent("run", "-q", "Work") == 0
    capsys.readouterr()

    assert workspace.agent("undo", "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert [(file["path"], file["action"]) for file in told["files"]] == [("a.txt", "remove")]
    assert told["restored"] == ["a.txt"]
