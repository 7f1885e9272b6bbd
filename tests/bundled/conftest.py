"""Fixtures for the bundled skills: a way to run their scripts, and a folder full of odd files."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from uv import find_uv_bin

# Tests are imported one by one, so what they share is put where Python finds it.
sys.path.insert(0, str(Path(__file__).parent))

from script_forks import ScriptForks

import metier
from metier.file_lock import FileLock

_WAIT_SECONDS = 300.0
BUNDLED = Path(metier.__file__).parent / "bundled"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script ended."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """Standard output as the one JSON object that it must be."""
        assert self.code == 0, self.err
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return cast("dict[str, Any]", value)


type Run = Callable[..., Outcome]


@pytest.fixture(scope="session")
def plain_forks() -> Iterator[ScriptForks]:
    """For scripts that need nothing but Python. A warning is an error."""
    with ScriptForks(sys.executable, "-W", "error") as running:
        yield running


@pytest.fixture
def run(plain_forks: ScriptForks) -> Run:
    """Run a script of a skill that needs nothing but Python: run("skill", "script", *arguments).

    With a small environment and closed standard input, as the script tools do.
    """
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")

    def call(skill: str, script: str, *arguments: str | Path) -> Outcome:
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        path = BUNDLED / skill / "scripts" / f"{script}.py"
        return Outcome(*plain_forks.run(path, *map(str, arguments), environment=environment))

    return call


@pytest.fixture(scope="session")
def script_python(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """An interpreter that has what the market scripts depend on, made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "script-python"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    with FileLock(folder.with_name(f"{folder.name}.lock"), wait_seconds=_WAIT_SECONDS):
        if not (folder / "ready").exists():
            uv = find_uv_bin()
            make = [uv, "venv", "--no-config", "--quiet", "--python", sys.executable, str(folder)]
            subprocess.run(make, env=environment, check=True, timeout=100)
            wanted = ["click>=8.1,<9", "httpx>=0.27,<1"]
            install = [uv, "pip", "install", "--no-config", "--quiet", "--python", str(python), *wanted]
            subprocess.run(install, env=environment, check=True, timeout=100)
            (folder / "ready").touch()
    return python


@pytest.fixture(scope="session")
def market_forks(script_python: Path) -> Iterator[ScriptForks]:
    packages = ("click", "httpx", "httpcore", "certifi", "encodings.idna", "importlib.resources")
    with ScriptForks(str(script_python), packages=packages) as running:
        yield running


@pytest.fixture
def odd_folder(tmp_path: Path) -> Iterator[Path]:
    """Text beside binary, broken, unreadable, huge, oddly named and special files."""
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
