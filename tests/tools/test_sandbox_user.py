"""The sandbox tests repeated as an unprivileged user if this process is root."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from metier.tools.process.child_environment import base_interpreter

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "65534"
SAMPLE = "changes_nothing or reads_no_secret or moved_away or variable_of or resists or private_and_gone"
"""Of the hostile programs, in the ordinary run; `METIER_SANDBOX_USER=all` runs every one."""
SHOW_PYTHON = """set -e
hold=$(mktemp -d)
mount --bind "$1" "$hold"
mount -t tmpfs -o mode=755 tmpfs "$2"
mkdir -p "$1"
mount --move "$hold" "$1"
rmdir "$hold"
shift 2
exec "$@"
"""
"""In a mount namespace of its own: a Python in root's closed home folder becomes visible to everybody."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user owns and can reach."""
    made = Path(tempfile.mkdtemp(prefix="metier-user-", dir="/tmp"))
    os.chown(made, int(NOBODY), int(NOBODY))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def build_command(folder: Path, *words: str) -> list[str]:
    variables = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
    command = [*user, "env", "-i", *(f"{name}={value}" for name, value in variables.items()), sys.executable, *words]
    prefix = Path(base_interpreter()).resolve().parent.parent
    closed = next((path for path in reversed(prefix.parents) if not path.stat().st_mode & 0o005), None)
    if closed is None:
        return command
    shown = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SHOW_PYTHON, "sh"]
    return [*shown, str(prefix), str(closed), *command]


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="the other tests run as a user already")
def test_hostile_programs_stay_confined_for_an_unprivileged_user(folder: Path) -> None:
    looking = build_command(folder, "-c", "import metier, pytest")
    seen = subprocess.run(looking, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if seen.returncode:
        pytest.skip(f"a user without rights cannot run this Python here: {seen.stderr.strip()[-200:]}")
    chosen = () if os.environ.get("METIER_SANDBOX_USER") == "all" else ("-k", SAMPLE)
    words = ("-m", "pytest", "-q", "-rs", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={folder}/t", *chosen)

    done = subprocess.run(
        build_command(folder, *words, "tests/tools/test_sandbox_escapes.py"),
        cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    if "SKIPPED" in done.stdout:
        pytest.skip(f"not every level can be shown to a user without rights: {done.stdout[-400:]}")
