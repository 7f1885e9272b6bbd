"""`agent` imports nothing from the workspace, tested in processes started like a user does."""

import os
import sys
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, run_approved, use_model

from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.levels import try_level


@pytest.mark.parametrize("entry", [".", ":/nowhere", "src", "/nowhere:WORK/src"])
def test_sandboxed_run_does_not_start_if_python_imports_from_the_workspace(
    workspace: Workspace, model: ModelServer, entry: str
) -> None:
    trial = try_level("full", get_bubblewrap(os.environ, workspace.folder))
    if not trial.works:
        pytest.skip(f"sandbox level 'full' cannot be shown here: {trial.summary}")
    (workspace.folder / "src").mkdir()
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "strict"})
    model.follow(says("Done."))
    path = entry.replace("WORK", str(workspace.folder))

    process = workspace.start("run", "Do it", PYTHONPATH=path)
    _, told = process.communicate(timeout=60)

    assert process.returncode == 2
    assert "PYTHONPATH names" in told
    assert "unset PYTHONPATH" in told
    assert model.received == []


def test_import_path_in_the_workspace_is_ignored_with_a_warning(workspace: Workspace, model: ModelServer) -> None:
    """A module of the workspace that hides one of Metier's later imports is not loaded."""
    workspace.write("src/typer.py", "open('escaped', 'w')\n")

    process = workspace.start("runs", "list", PYTHONPATH="src")
    _, told = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "warning: 'src' in PYTHONPATH is ignored" in told
    assert not (workspace.folder / "escaped").exists()


def test_import_path_outside_the_workspace_is_kept(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()

    process = workspace.start("runs", "list", PYTHONPATH=str(tmp_path / "elsewhere"))
    _, told = process.communicate(timeout=60)

    assert (process.returncode, "PYTHONPATH" in told) == (0, False)


@pytest.mark.parametrize("name", ["sitecustomize.py", "sitecustomize.pyc", "usercustomize/__init__.py"])
def test_program_cannot_plant_a_startup_module_next_to_an_editable_package(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    trial = try_level("full", get_bubblewrap(os.environ, workspace.folder))
    if not trial.works:
        pytest.skip(f"sandbox level 'full' cannot be shown here: {trial.summary}")
    workspace.write("src/project.py", "")
    workspace.write("src/package/__init__.py", "")
    # As an editable install does it.
    monkeypatch.setattr("sys.path", [*sys.path, str(workspace.folder / "src")])
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "strict"})
    plant = f"mkdir -p src/{Path(name).parent}; echo x > src/{name}"
    line = f"{plant}; echo x > src/project.py; echo x > src/package/new.py"
    model.follow(calls("Bash", command=line), says("Done."))

    assert run_approved(workspace) == 0

    assert sorted(path.name for path in (workspace.folder / "src").iterdir()) == ["package", "project.py"]
    written = ["src/project.py", "src/package/new.py"]
    assert [(workspace.folder / file).read_text() for file in written] == ["x\n", "x\n"]
