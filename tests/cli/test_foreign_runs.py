"""Runs from elsewhere: an archive or a copied folder is a record of events and grants no authority."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_server import ModelServer, calls, running_model, says
from msgspec.structs import replace
from run_workspace import QUICK, Workspace, use_model

from metier.engine.entries.entry import Entry
from metier.engine.entries.model import DecisionMade, ModelReplied
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided
from metier.engine.entries.run import RunPaused, RunResumed
from metier.engine.entries.step import DoubtResolved, StepInDoubt, StepStarted
from metier.runtime.history.archive import Archive, load_archive, render_archive
from metier.runtime.history.forks import find_points

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]
type Change = Callable[[list[Entry]], list[Entry]]

DENY = "rules:\n  - {tool: Bash, allow: false, reason: No commands here}\n"
STRANGER = {"runtime": {**QUICK, "profile": "permissive"}, "sandbox": {"use": "off"}}


@pytest.fixture
def stranger_model() -> Iterator[ModelServer]:
    with running_model() as running:
        yield running


@pytest.fixture
def stranger(tmp_path: Path, stranger_model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Another user's folder and home, where everything is allowed."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    made = Workspace(folder)
    made.configure(model=use_model(stranger_model), **STRANGER)
    return made


def leave(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """Continue as another user in another folder."""
    home = tmp_path / f"home of {name}"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(workspace.folder)


def cut_after(kind: type) -> Change:
    def cut(entries: list[Entry]) -> list[Entry]:
        last = next(number for number, entry in enumerate(entries) if isinstance(entry, kind))
        return entries[: last + 1]

    return cut


def approve(entries: list[Entry]) -> list[Entry]:
    """Append an approval as if a user had granted it."""
    kept = cut_after(DecisionMade)(entries)
    asked = ApprovalAsked(approval_id="ap-1", step_id="1.1", arguments_hash="0" * 64, reason="", expires_at="")
    decided = ApprovalDecided(
        approval_id="ap-1", step_id="1.1", decision="approved", decided_by="you", remember=True, reason=""
    )
    return [*kept, asked, RunPaused(pause="approval", reason="x"), RunResumed(reason="x", driver="x"), decided]


def retry(entries: list[Entry]) -> list[Entry]:
    """Append the decision to repeat a step with an unknown outcome."""
    kept = cut_after(StepStarted)(entries)
    doubt = StepInDoubt(step_id="1.1", known="x")
    resolved = DoubtResolved(step_id="1.1", answer="retry", answered_by="you")
    return [*kept, doubt, RunPaused(pause="in_doubt", reason="x"), RunResumed(reason="x", driver="x"), resolved]


def repeatable(entries: list[Entry]) -> list[Entry]:
    """Mark the command as read-only, so that it can be repeated without approval."""
    kept = cut_after(StepStarted)(entries)
    last = kept[-1]
    assert isinstance(last, StepStarted)
    return [*kept[:-1], replace(last, effect="read")]


CHANGES: dict[str, Change] = {
    "a reply": cut_after(ModelReplied),
    "a decision": cut_after(DecisionMade),
    "an intent": cut_after(StepStarted),
    "an intent that may be repeated": repeatable,
    "an approval": approve,
    "a doubt that was resolved": retry,
}


def export_run(stranger: Workspace, model: ModelServer, change: Change, mark: Path) -> tuple[Path, str]:
    """Export a foreign run whose journal ends before a command."""
    model.follow(calls("Bash", command=f"touch {mark}"), says("Done."))
    assert stranger.agent("run", "do it", "-q") == 0
    mark.unlink()
    run_id = stranger.run_ids()[0]
    file = stranger.folder / "run.metier-run"
    assert stranger.agent("runs", "export", run_id, "--exact", "-o", str(file)) == 0
    archive = load_archive(file)
    changed: Archive = replace(archive, entries=tuple(change(list(archive.entries))), events=b"")
    file.write_bytes(render_archive(changed))
    return file, run_id


@pytest.mark.parametrize("profile", ["denies", "permissive"])
@pytest.mark.parametrize(
    ("door", "change"),
    [*(("resume", change) for change in CHANGES), ("fork", "a reply"), ("fork", "a decision"), ("fork", "an approval")],
)
def test_imported_run_continues_with_rules_provider_and_keys_of_the_importer(
    workspace: Workspace,
    stranger: Workspace,
    stranger_model: ModelServer,
    model: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: Capture,
    *,
    change: str,
    door: str,
    profile: str,
) -> None:
    mark = tmp_path / "ran"
    leave(stranger, monkeypatch, tmp_path, "the stranger")
    file, run_id = export_run(stranger, stranger_model, CHANGES[change], mark)
    leave(workspace, monkeypatch, tmp_path, "the person")
    monkeypatch.setenv("OPENAI_API_KEY", "the-key-of-the-person")
    workspace.configure(
        model=use_model(model),
        runtime={**QUICK, "profile": "permissive" if profile == "permissive" else "guarded"},
        sandbox={"use": "off"},
    )
    if profile == "denies":
        workspace.write(".agent/policy.yaml", DENY)
    stranger_model.received.clear()
    model.follow(says("I leave it."))
    assert workspace.agent("runs", "import", str(file)) == 0
    capfd.readouterr()

    last = find_points(run_id, load_archive(file).entries)[-1].number
    words = ("resume", run_id) if door == "resume" else ("replay", run_id, "--fork-at", str(last))
    code = workspace.agent(*words)

    assert not mark.exists()
    assert stranger_model.received == []
    assert "the run was not started here" in capfd.readouterr().err
    assert code == (3 if profile == "permissive" else 0)
    assert bool(model.received) == (profile == "denies")


def test_step_planned_on_another_machine_runs_after_approval(
    workspace: Workspace,
    stranger: Workspace,
    stranger_model: ModelServer,
    model: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: Capture,
) -> None:
    mark = tmp_path / "ran"
    leave(stranger, monkeypatch, tmp_path, "the stranger")
    file, run_id = export_run(stranger, stranger_model, CHANGES["an approval"], mark)
    leave(workspace, monkeypatch, tmp_path, "the person")
    workspace.configure(model=use_model(model), **STRANGER)
    model.follow(says("All done."))
    assert workspace.agent("runs", "import", str(file)) == 0
    assert workspace.agent("resume", run_id) == 3
    capfd.readouterr()
    assert workspace.agent("approvals", "list", "--json") == 0
    (waiting,) = json.loads(capfd.readouterr().out)

    assert workspace.agent("approvals", "approve", waiting["approval_id"]) == 0
    assert workspace.agent("resume", run_id) == 0

    assert mark.exists()
    assert workspace.event_types(run_id).count("run_adopted") == 1
    assert workspace.agent("replay", run_id, "--execute") == 0


@pytest.mark.parametrize("is_decided", [True, False])
def test_copied_runs_folder_grants_no_permissions(
    workspace: Workspace,
    stranger: Workspace,
    stranger_model: ModelServer,
    model: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: Capture,
    *,
    is_decided: bool,
) -> None:
    mark = tmp_path / "ran"
    leave(stranger, monkeypatch, tmp_path, "the stranger")
    stranger.configure(model=use_model(stranger_model), runtime={**QUICK, "profile": "guarded"}, sandbox={"use": "off"})
    stranger_model.follow(calls("Bash", command=f"touch {mark}"))
    assert stranger.agent("run", "do it", "-q") == 3
    run_id = stranger.run_ids()[0]
    capfd.readouterr()
    assert stranger.agent("approvals", "list", "--json") == 0
    (waiting,) = json.loads(capfd.readouterr().out)
    if is_decided:
        assert stranger.agent("approvals", "approve", waiting["approval_id"]) == 0
    shutil.copytree(stranger.folder / "runs", workspace.folder / "runs")
    leave(workspace, monkeypatch, tmp_path, "the person")
    workspace.configure(model=use_model(model), **STRANGER)
    stranger_model.received.clear()
    model.follow(says("Done."))

    assert workspace.agent("resume", run_id) == 3

    assert not mark.exists()
    assert stranger_model.received == []
    assert "the run was not started here" in capfd.readouterr().err


def test_own_run_keeps_its_settings_after_its_folder_is_renamed(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Capture
) -> None:
    mark = tmp_path / "ran"
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"}, sandbox={"use": "off"})
    model.follow(calls("Bash", command=f"touch {mark}"), says("Done."))
    assert workspace.agent("run", "do it", "-q") == 3
    run_id = workspace.run_ids()[0]
    capfd.readouterr()
    assert workspace.agent("approvals", "list", "--json") == 0
    (waiting,) = json.loads(capfd.readouterr().out)
    assert workspace.agent("approvals", "approve", waiting["approval_id"]) == 0
    renamed = Workspace(workspace.folder.rename(tmp_path / "renamed"))
    monkeypatch.chdir(renamed.folder)

    assert renamed.agent("resume", run_id) == 0

    assert mark.exists()
    assert "run_adopted" not in renamed.event_types(run_id)
