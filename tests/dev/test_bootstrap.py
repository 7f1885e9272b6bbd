"""`./dev` on a machine whose only Python is too old for Metier, as on Debian 12, Ubuntu 22.04 and macOS."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "dirname", "cat", "cksum", "rm", "awk", "mkdir")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="names the interpreters of uv as they are on Linux"),
    pytest.mark.slow,
]

OLD_PYTHON = """#!/bin/sh
case $1 in
-c) exit 1 ;;
-V) echo 'Python 3.11.2' ;;
*) exec '{real}' "$@" ;;
esac
"""
"""Fails the check of its version, and does everything else that an older Python does."""


class Machine:
    """A copy of the files that `./dev` reads, an empty home, and only the programs added by the test."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "my clone"
        self.home = folder / "home"
        self.programs = folder / "bin"
        for made in (self.clone, self.home, self.programs):
            made.mkdir()
        shutil.copy(ROOT / "requirements.lock", self.clone)
        for tool in TOOLS:
            (self.programs / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
        # Up to the commands: what makes the environment, without the minute that installing every package takes.
        functions = (ROOT / "dev").read_text(encoding="utf-8").partition("\ncommand=")[0]
        (self.clone / "dev").write_text(f"{functions}\nmake_environment\n", encoding="utf-8")

    def add_old_python(self) -> None:
        program = self.programs / "python3"
        program.write_text(OLD_PYTHON.format(real=sys.executable), encoding="utf-8")
        program.chmod(0o755)

    def add_uv(self) -> None:
        (self.programs / "uv").symlink_to(Path(sys.executable).with_name("uv"))

    def add_python_of_uv(self) -> None:
        """Add an interpreter in uv's download folder, so that the test needs no download."""
        libc = "musl" if platform.libc_ver()[0] != "glibc" else "gnu"
        name = f"cpython-{platform.python_version()}-linux-{platform.machine()}-{libc}"
        kept = self.home / "pythons" / name
        kept.mkdir(parents=True)
        for part in ("bin", "lib", "include"):
            (kept / part).symlink_to(Path(sys.base_prefix, part))

    def make_environment(self) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
        env = {
            **inherited,
            "PATH": str(self.programs),
            "HOME": str(self.home),
            "UV_PYTHON_INSTALL_DIR": str(self.home / "pythons"),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_LINK_MODE": "copy",
        }
        return subprocess.run(
            ["/bin/sh", self.clone / "dev"], env=env, capture_output=True, text=True, check=False, timeout=100
        )

    def skip_where_a_new_python_lies_around(self, done: subprocess.CompletedProcess[str]) -> None:
        if "making .venv with Python 3" in done.stderr:
            pytest.skip("this machine has a new Python in a place that every user sees")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def check_environment(machine: Machine, done: subprocess.CompletedProcess[str]) -> None:
    machine.skip_where_a_new_python_lies_around(done)
    assert done.returncode == 0, done.stderr
    programs = machine.clone / ".venv" / "bin"
    version = subprocess.run(
        [programs / "python", "-c", "import sys; print(sys.version_info >= (3, 12))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert version.stdout == "True\n"
    assert subprocess.run([programs / "uv", "--version"], capture_output=True, check=False).returncode == 0


def test_uv_on_the_path_installs_a_missing_python(machine: Machine) -> None:
    machine.add_old_python()
    machine.add_uv()
    machine.add_python_of_uv()

    done = machine.make_environment()

    check_environment(machine, done)
    assert "installing uv with" not in done.stderr


def test_an_old_python_installs_uv_which_installs_a_new_one(machine: Machine) -> None:
    machine.add_old_python()
    machine.add_python_of_uv()

    done = machine.make_environment()

    check_environment(machine, done)
    assert "installing uv with Python 3.11.2, which is too old for Metier itself" in done.stderr
    assert not (machine.clone / ".uv").exists()


def test_a_uv_that_cannot_install_python_is_reported_in_one_message(machine: Machine) -> None:
    machine.add_old_python()
    machine.add_uv()

    done = machine.make_environment()

    machine.skip_where_a_new_python_lies_around(done)
    assert done.returncode == 1
    assert "error: uv could not bring a Python 3.12\n" in done.stderr
    assert "UV_PYTHON_INSTALL_MIRROR" in done.stderr


def test_pyenv_is_found_by_its_shims_with_another_home(machine: Machine) -> None:
    shims = machine.home.parent / "pyenv" / "shims"
    version = machine.home.parent / "pyenv" / "versions" / "3.12.1" / "bin"
    for folder in (shims, version):
        folder.mkdir(parents=True)
    shim = shims / "python3"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    (version / "python3").symlink_to(sys.executable)
    functions = (ROOT / "dev").read_text(encoding="utf-8").partition("\ncommand=")[0]
    (machine.clone / "dev").write_text(f"{functions}\nfind_python\n", encoding="utf-8")

    found = subprocess.run(
        ["/bin/sh", machine.clone / "dev"],
        env={"PATH": f"{shims}:{machine.programs}", "HOME": str(machine.home)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).resolve() == Path(sys.executable).resolve()
