"""`agent runs export` and `agent runs import`: a run as one file, on another machine, without a key."""

import json
import shutil
import zipfile
from pathlib import Path

import anyio
import pytest
from model_server import ModelServer, calls, says
from msgspec.structs import replace
from run_workspace import Workspace

from metier.cli.main import run
from metier.cli.shared.open_host import open_host
from metier.runtime.history.archive import Archive, load_archive, render_archive
from metier.runtime.runs import open_runtime
from metier.store.base import RunRow

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]

SECRET = "sk-" + "proj-" + "Zq8" * 12


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def run_id(workspace: Workspace, model: ModelServer, capsys: Capture) -> str:
    """A run whose task, reply and argument contain a secret."""
    model.follow(
        calls("script_run", skill_name="greeter", script_name="greet", args=[SECRET]), says(f"Greeted {SECRET}.")
    )
    assert workspace.agent("run", f"Greet with {SECRET}", "-q") == 0
    capsys.readouterr()
    return workspace.run_ids()[0]


@pytest.mark.parametrize("exact", [False, True])
def test_an_exported_run_replays_in_an_empty_folder(
    *, exact: bool, run_id: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file = elsewhere / "a.metier-run"
    assert run(["runs", "export", run_id, "-o", str(file), *(["--exact"] if exact else [])]) == 0
    monkeypatch.chdir(elsewhere)

    assert run(["runs", "import", str(file)]) == 0
    assert run(["replay", run_id, "--execute"]) == 0
    assert run(["runs", "show", run_id]) == 0
    assert run(["replay", run_id, "--event-stream"]) == 0

    assert (SECRET.encode() in file.read_bytes()) == exact
    assert "Replay matches: " in capsys.readouterr().out


def test_an_export_has_no_secret_that_became_known_after_the_run(
    workspace: Workspace, model: ModelServer, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = "plum-orchard-7319-lantern"
    model.follow(says(f"The word is {word}."))
    assert workspace.agent("run", f"Say {word}", "-q") == 0
    run_id = workspace.run_ids()[0]
    monkeypatch.setenv("DEPLOY_TOKEN", word)

    assert run(["runs", "export", run_id, "-o", str(elsewhere / "a")]) == 0

    assert word.encode() not in (elsewhere / "a").read_bytes()
    monkeypatch.chdir(elsewhere)
    assert run(["runs", "import", "a"]) == 0
    assert run(["replay", run_id]) == 0


def test_the_same_run_gives_the_same_bytes(run_id: str, elsewhere: Path) -> None:
    for name in ("a", "b"):
        assert run(["runs", "export", run_id, "-o", str(elsewhere / name)]) == 0

    assert (elsewhere / "a").read_bytes() == (elsewhere / "b").read_bytes()
    assert (elsewhere / "a").stat().st_mode & 0o077 == 0


def test_a_run_is_not_imported_twice(run_id: str, elsewhere: Path, capsys: Capture) -> None:
    file = elsewhere / "a.metier-run"
    assert run(["runs", "export", run_id, "-o", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["redacted"] is True

    assert run(["runs", "import", str(file)]) == 2


def test_an_import_interrupted_before_the_journal_can_be_repeated(
    *, workspace: Workspace, model: ModelServer, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    workspace.write(".agent/tasks/say/TASK.md", "---\nname: Say\n---\n\nSay something.\n")
    model.follow(says("Something."))
    assert workspace.agent("task", "run", "say", "-q") == 0
    run_id = workspace.run_ids()[0]
    file = elsewhere / "a.metier-run"
    assert run(["runs", "export", run_id, "-o", str(file)]) == 0
    archive = load_archive(file)
    monkeypatch.chdir(elsewhere)

    async def cut_short() -> None:
        async with open_runtime(open_host(None)) as runtime:
            now = runtime.host.clock.now()
            for each in (archive, *archive.children):
                row = RunRow(
                    run_id=each.run_id,
                    context_id=each.run_id,
                    status="completed",
                    task="",
                    created_at=now,
                    updated_at=now,
                )
                await runtime.store.create_run(row)

    anyio.run(cut_short)

    assert run(["runs", "import", str(file)]) == 0

    for each in (archive, *archive.children):
        assert run(["replay", each.run_id, "--execute"]) == 0
    assert run(["runs", "import", str(file)]) == 2
    assert capsys.readouterr().out.count("Replay matches: ") == 2


def rewrite(file: Path, change: dict[str, bytes | None]) -> None:
    with zipfile.ZipFile(file) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(file, "w") as new:
        for name, data in {**members, **change}.items():
            if data is not None:
                new.writestr(name, data)


@pytest.mark.parametrize(
    ("member", "data", "sentence"),
    [
        ("journal.jsonl", b"", "'journal.jsonl' was changed"),
        ("run.json", b"{}", "'run.json' was changed"),
        ("events.jsonl", None, "members were added or removed"),
        ("more.txt", b"x", "members were added or removed"),
        ("manifest.json", b"{}", "no manifest"),
        ("manifest.json", b'{"run_id": "../../x", "redacted": false}', "its manifest was changed"),
    ],
)
def test_a_tampered_file_is_rejected(
    *, member: str, data: bytes | None, sentence: str, run_id: str, elsewhere: Path, capsys: Capture
) -> None:
    file = elsewhere / "a.metier-run"
    run(["runs", "export", run_id, "-o", str(file)])
    rewrite(file, {member: data})

    assert run(["runs", "import", str(file)]) == 1

    assert sentence in capsys.readouterr().err


def test_every_changed_byte_is_detected(
    *, run_id: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    whole = elsewhere / "a.metier-run"
    run(["runs", "export", run_id, "-o", str(whole)])
    data = whole.read_bytes()
    with zipfile.ZipFile(whole) as file:
        offsets = [info.header_offset + 30 + len(info.filename) + info.file_size // 2 for info in file.infolist()]
        sizes = [info.file_size for info in file.infolist()]
    monkeypatch.chdir(elsewhere)

    for offset, size in zip(offsets, sizes, strict=True):
        if size:
            broken = elsewhere / "broken.metier-run"
            broken.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
            assert run(["runs", "import", str(broken)]) == 1
    assert not (elsewhere / "runs" / run_id).exists()
    capsys.readouterr()


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip file"])
def test_a_file_that_is_not_an_export_is_refused(
    *, data: bytes, workspace: Workspace, elsewhere: Path, capsys: Capture
) -> None:
    file = elsewhere / "a"
    file.write_bytes(data)

    assert workspace.agent("runs", "import", str(file)) == 1
    assert workspace.agent("runs", "import", str(elsewhere / "nowhere")) == 2

    assert "cannot be used" in capsys.readouterr().err


def test_a_paused_run_can_be_answered_after_import(
    *, workspace: Workspace, model: ModelServer, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    model.follow(calls("ask_user", question="Which?"), says("Thank you."))
    assert workspace.agent("run", "Ask", "-q") == 4
    run_id = workspace.run_ids()[0]
    file = elsewhere / "a.metier-run"
    assert run(["runs", "export", run_id, "-o", str(file)]) == 0
    monkeypatch.chdir(elsewhere)
    run(["runs", "import", str(file)])
    shutil.copy(workspace.folder / "agent.yaml", elsewhere)  # a run goes on with the settings of the place it is in
    capsys.readouterr()

    assert run(["resume", run_id, "--input", "answer=this", "-q"]) == 0

    assert capsys.readouterr().out == "Thank you.\n"


TASK = """\
---
name: Greetings
skills: [greeter]
inputs:
  - name: whom
tool_approvals:
  rules:
    - {tool: script_run, allow: true}
next: again.md
---

Greet {{inputs.whom}}
"""
AGAIN = "---\nname: Again\nskills: [greeter]\n---\n\nGreet again: {{steps.TASK.result}}\n"


@pytest.mark.parametrize("exact", [False, True])
def test_a_task_run_is_exported_with_its_steps_and_all_replay_after_import(
    *, exact: bool, workspace: Workspace, model: ModelServer, elsewhere: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:  # fmt: skip
    workspace.write(".agent/tasks/greetings/TASK.md", TASK)
    workspace.write(".agent/tasks/greetings/again.md", AGAIN)
    greet = calls("script_run", skill_name="greeter", script_name="greet", args=[SECRET])
    model.follow(greet, says(f"Greeted {SECRET}."), says("Done."))
    assert workspace.agent("task", "run", "greetings", "--input", f"whom={SECRET}", "-q") == 0
    run_id = workspace.run_ids()[0]
    file = elsewhere / "a.metier-run"
    capsys.readouterr()

    assert run(["runs", "export", run_id, "-o", str(file), "--json", *(["--exact"] if exact else [])]) == 0
    children = json.loads(capsys.readouterr().out)["children"]
    monkeypatch.chdir(elsewhere)
    assert run(["runs", "import", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["children"] == children

    assert len(children) == 2
    assert (SECRET.encode() in file.read_bytes()) == exact
    for each in (run_id, *children):
        assert run(["replay", each, "--execute"]) == 0
        assert run(["replay", each, "--event-stream"]) == 0
        assert run(["runs", "show", each]) == 0
    shown = capsys.readouterr().out
    assert shown.count("Replay matches: ") == 3
    assert shown.count(f"parent:  {run_id}") == 2


def test_a_task_paused_in_a_step_can_be_continued_after_import(
    *, workspace: Workspace, model: ModelServer, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    workspace.write(".agent/tasks/ask/TASK.md", "---\nname: Ask\n---\n\nAsk.\n")
    model.follow(calls("ask_user", question="Which?"), says("Thank you."))
    assert workspace.agent("task", "run", "ask", "-q") == 4
    run_id = workspace.run_ids()[0]
    file = elsewhere / "a.metier-run"
    assert run(["runs", "export", run_id, "-o", str(file)]) == 0
    monkeypatch.chdir(elsewhere)
    assert run(["runs", "import", str(file)]) == 0
    shutil.copy(workspace.folder / "agent.yaml", elsewhere)
    shutil.copytree(workspace.folder / ".agent", elsewhere / ".agent")
    capsys.readouterr()

    assert run(["resume", run_id, "--input", "answer=this", "-q"]) == 0

    assert capsys.readouterr().out == "Thank you.\n"


def test_a_child_run_without_its_parent_in_the_file_is_rejected(
    *, workspace: Workspace, model: ModelServer, elsewhere: Path, capsys: Capture
) -> None:
    model.follow(says("One."), says("Two."))
    assert workspace.agent("run", "One", "-q") == 0
    assert workspace.agent("run", "Two", "-q") == 0
    one, two = (elsewhere / "one", elsewhere / "two")
    for run_id, file in zip(workspace.run_ids(), (one, two), strict=True):
        assert run(["runs", "export", run_id, "-o", str(file), "--exact"]) == 0
    archive = load_archive(one)
    stranger = load_archive(two)
    one.write_bytes(render_archive(replace(archive, children=(stranger,))))

    assert run(["runs", "import", str(one)]) == 1

    assert "works for none of the others" in capsys.readouterr().err


@pytest.mark.parametrize("is_top", [False, True])
def test_a_cycle_of_parent_runs_is_rejected(
    *, is_top: bool, workspace: Workspace, model: ModelServer, elsewhere: Path, capsys: Capture
) -> None:
    model.follow(says("One."))
    assert workspace.agent("run", "One", "-q") == 0
    file = elsewhere / "a"
    assert run(["runs", "export", workspace.run_ids()[0], "-o", str(file), "--exact"]) == 0
    archive = load_archive(file)

    def work_for(parent: str, run_id: str) -> Archive:
        started = replace(archive.started, parent_run_id=parent)
        return replace(archive, run_id=run_id, entries=(started, *archive.entries[1:]))

    circle = (
        replace(work_for("child-x", "child-y"), children=(work_for("child-y", "child-x"),))
        if is_top
        else replace(archive, children=(work_for("child-x", "child-y"), work_for("child-y", "child-x")))
    )
    file.write_bytes(render_archive(circle))

    assert run(["runs", "import", str(file)]) == 1

    assert "works for" in capsys.readouterr().err


def test_an_html_export_is_one_page_without_script_address_or_secret(
    run_id: str, elsewhere: Path, capsys: Capture
) -> None:
    page = elsewhere / "run.html"

    assert run(["runs", "export", run_id, "--html", "-o", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"{page}\n"
    assert "script_run" in text
    assert "Greeted" in text
    assert SECRET not in text
    assert "<script" not in text
    assert "src=" not in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_an_exact_html_export_is_rejected(run_id: str, elsewhere: Path) -> None:
    assert run(["runs", "export", run_id, "--html", "--exact", "-o", str(elsewhere / "x.html")]) == 2
    assert not (elsewhere / "x.html").exists()
