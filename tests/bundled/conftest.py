"""Fixtures for the bundled skills: a script runner, and a folder of unusual files."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from uv import find_uv_bin

# Tests are imported one by one, so what they share is put where Python finds it.
sys.path.insert(0, str(Path(__file__).parent))

from skill_scripts import Outcome, run_script

import metier

_WAIT_SECONDS = 300.0
BUNDLED = Path(metier.__file__).parent / "bundled"


type Run = Callable[..., Outcome]


@pytest.fixture
def run() -> Run:
    """Run a script of a skill that needs nothing but Python: run("skill", "script", *arguments).

    With a small environment, as the script tools do.
    """
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")

    def call(skill: str, script: str, *arguments: str | Path) -> Outcome:
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        path = BUNDLED / skill / "scripts" / f"{script}.py"
        return run_script(path, *map(str, arguments), env=environment)

    return call


@pytest.fixture(scope="session")
def script_python(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """An interpreter with the dependencies of the market scripts, created once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "script-python"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    with FileLock(folder.with_name(f"{folder.name}.lock"), timeout=_WAIT_SECONDS):
        if not (folder / "ready").exists():
            uv = find_uv_bin()
            make = [uv, "venv", "--no-config", "--quiet", "--python", sys.executable, str(folder)]
            subprocess.run(make, env=environment, check=True, timeout=100)
            wanted = ["click>=8.1,<9", "httpx>=0.27,<1"]
            install = [uv, "pip", "install", "--no-config", "--quiet", "--python", str(python), *wanted]
            subprocess.run(install, env=environment, check=True, timeout=100)
            (folder / "ready").touch()
    return python


@pytest.fixture
def odd_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with text, binary, broken, unreadable, huge, oddly named and special files."""
    root = tmp_path / "odd"
    (root / "node_modules" / "left").mkdir(parents=True)
    (root / "node_modules" / "left" / "index.js").write_text("// TODO: never read\n")
    (root / "notes.md").write_text("# Notes\n\n- [ ] Paint the boat @ada\n\nThe harbour office opens at nine.\n")
    (root / "windows.txt").write_bytes("Erste Zeile\r\nDer Hafen schläft\r\n".encode("utf-16"))
    (root / "latin.txt").write_bytes("Le port dort à midi.\n".encode("latin-1"))
    (root / "picture.png").write_bytes(b"\x89PNG\0\0harbour" + bytes(range(256)))
    (root / "empty.txt").touch()
    (root / "no-newline.txt").write_text("harbour without an end")
    (root / "copy.txt").write_text("harbour without an end")
    (root / "broken").symlink_to("nowhere")
    (root / "loop").symlink_to("..")
    os.mkfifo(root / "pipe")
    (Path(os.fsdecode(os.fsencode(root) + b"/bad-\xff-name.txt"))).write_text("harbour in a bad name\n")
    (root / "line\nbreak.txt").write_text("harbour in a broken name\n")
    with (root / "huge.log").open("wb") as stream:
        stream.truncate(100 * 1024 * 1024)
    (root / "locked.txt").write_text("harbour locked away\n")
    (root / "locked.txt").chmod(0)
    (root / "minified.js").write_text("x" * 200_000 + " harbour\n")
    yield root
    (root / "locked.txt").chmod(0o600)
