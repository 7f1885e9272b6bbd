"""Modified run files are rejected completely with a message."""

import os
from pathlib import Path

import pytest
from archive_mutations import MUTATIONS, read_members, sign, write_members
from model_server import ModelServer, says
from run_workspace import Workspace


@pytest.fixture
def exported(workspace: Workspace, model: ModelServer, tmp_path: Path) -> bytes:
    model.follow(says("Done."))
    assert workspace.agent("run", "hello", "-q") == 0
    file = tmp_path / "run.metier-run"
    assert workspace.agent("runs", "export", workspace.run_ids()[0], "-o", str(file)) == 0
    return file.read_bytes()


def test_modified_archive_is_rejected_entirely(
    workspace: Workspace,
    exported: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del workspace
    elsewhere = Workspace(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    monkeypatch.chdir(elsewhere.folder)
    file = tmp_path / "changed.metier-run"
    accepted: list[str] = []
    for name, mutate in MUTATIONS.items():
        file.write_bytes(mutate(exported))
        capsys.readouterr()
        code = elsewhere.agent("runs", "import", str(file))
        told = capsys.readouterr().err
        if code != 1 or "cannot be used" not in told or elsewhere.run_ids():
            accepted.append(f"{name}: {code} {told}")

    assert accepted == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "changed.metier-run", "elsewhere", "home", "run.metier-run", "work",
    ]  # fmt: skip
    file.write_bytes(write_members(sign(read_members(exported))))
    assert elsewhere.agent("runs", "import", str(file)) == 0, "what the mutations begin with is a good archive"


def test_special_files_are_rejected_without_blocking(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.metier-run")
    os.mkfifo(tmp_path / "pipe.run.gz")

    codes = [workspace.agent("runs", "import", str(tmp_path / name)) for name in ("pipe.metier-run", "pipe.run.gz")]

    assert codes == [1, 1]
    assert capsys.readouterr().err.count("it is not a regular file") == 2
