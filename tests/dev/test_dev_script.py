"""`./dev` on unprepared machines: other folders, odd paths, nothing installed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent


def copy_repository(target: Path) -> Path:
    """Create a fresh clone without installed or built files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def run(command: list[str | Path], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # What a copy of the project executes says nothing about this one: it is not measured.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    env = {**inherited, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def find_needed(*packages: str) -> set[str]:
    """Return packages with their requirements, without extras."""
    found: set[str] = set()
    open_names = [(name, "") for name in packages]
    while open_names:
        name, extra = open_names.pop()
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            key = canonicalize_name(needed.name)
            if (needed.marker is None or needed.marker.evaluate({"extra": extra})) and key not in found:
                found.add(key)
                open_names += [(key, each) for each in ("", *needed.extras)]
    return found | set(packages)


def shorten_lock(clone: Path) -> None:
    """Shorten the lock to the command's requirements: installing the full lock takes twenty seconds."""
    needed = find_needed("metier", "hatchling", "editables", "uv")
    lock = clone / "requirements.lock"
    entries = re.split(r"^(?=[^ #\n])", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    kept = [entry for entry in entries if re.split(r"[=\[ ]", entry, maxsplit=1)[0] in needed]
    assert 20 < len(kept) < len(entries) / 2
    lock.write_text("".join(kept), encoding="utf-8")


@pytest.mark.slow
def test_dev_installs_in_a_path_with_spaces_and_runs_from_another_folder(tmp_path: Path) -> None:
    clone = copy_repository(tmp_path / "my own clone")
    shorten_lock(clone)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()

    first = run([clone / "dev", "agent", "--version"], elsewhere)
    second = run([clone / "dev", "agent", "--version"], elsewhere)

    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout == "agent 0.2.0\n"
    assert "installing the packages" in first.stderr
    assert second.stderr == ""


def test_a_machine_without_a_new_python_gets_a_message(tmp_path: Path) -> None:
    clone = copy_repository(tmp_path / "clone")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname", "cat", "cksum", "rm", "awk", "mktemp"):
        (tools / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")

    done = run([clone / "dev", "demo"], tmp_path, PATH=str(tools), HOME=str(tmp_path), PYENV_ROOT="", AGENT_PYTHON="")

    if "making .venv" in done.stderr:
        pytest.skip("this machine has a new Python in a place that every user sees")
    assert done.returncode == 1
    assert "error: No Python 3.12 or newer was found, and no uv that could bring one\n" in done.stderr
    assert "AGENT_PYTHON" in done.stderr


def test_an_unknown_command_lists_the_known_ones(tmp_path: Path) -> None:
    done = run([ROOT / "dev", "dance"], tmp_path)

    assert done.returncode == 1
    assert "./dev COMMAND" in done.stderr
    assert "error: Unknown command 'dance'" in done.stderr


def test_ci_runs_exactly_the_test_command_of_the_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert ci.splitlines()[-1] == "./dev test"
    assert "$ ./dev test\n" in readme
    assert "$ ./dev demo\n" in readme


def test_tests_run_in_a_scrubbed_environment(tmp_path: Path) -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    function = script[script.index("run_scrubbed() {") :]
    function = function[: function.index("\n}\n") + 2]
    unwanted = {"PYTHONUNBUFFERED": "1", "AGENT_PROFILE": "strict", "OPENAI_API_KEY": "x"}

    done = run(["/bin/sh", "-euc", f"{function}\nrun_scrubbed X='a b' env"], tmp_path, UV_OFFLINE="a 'b'", **unwanted)

    variables = dict(line.split("=", maxsplit=1) for line in done.stdout.splitlines())
    assert {**variables, "LANG": "C.UTF-8", "X": "a b", "UV_OFFLINE": "a 'b'"} == variables
    assert variables.keys() & unwanted.keys() == set()
    assert {"HOME", "PATH"} <= variables.keys()


def test_missing_programs_are_named_if_they_cannot_be_installed(tmp_path: Path) -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    function = script[script.index("install_test_programs() {") :]
    function = function[: function.index("\n}\n") + 2]
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "id").write_text("#!/bin/sh\necho 1000\n", encoding="utf-8")
    (tools / "id").chmod(0o755)
    lines = f'say() {{ printf "%s\\n" "$*"; }}\n{function}\ninstall_test_programs\n'

    done = run(["/bin/sh", "-c", lines], tmp_path, PATH=str(tools))

    assert done.returncode == 0, done.stderr
    assert "their tests are skipped: bubblewrap ripgrep strace rabbitmq-server" in done.stdout


@pytest.mark.parametrize("gate", ["ruff", "basedpyright", "lint-imports", "pytest"])
def test_checks_start_through_uv_and_write_no_lock_file(gate: str) -> None:
    uv = Path(sys.executable).parent / "uv"
    assert f"$ uv run {gate}" in (ROOT / "docs/testing.md").read_text(encoding="utf-8")

    done = run([uv, "run", gate, "--help"], ROOT, UV_NO_SYNC="1")

    assert done.returncode == 0, done.stderr
    assert not (ROOT / "uv.lock").exists()


def test_lock_has_a_hash_for_every_package_and_no_url() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()

    pinned = [number for number, line in enumerate(lines) if re.match(r"[a-z0-9].*==", line)]
    assert len(pinned) > 50
    assert all("--hash=sha256:" in lines[number + 1] for number in pinned)
    assert not [line for line in lines if "://" in line or "--index" in line]


def test_dev_installs_the_packages_of_each_test_group_from_the_lock() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    script = (ROOT / "dev").read_text("utf-8")
    lock = (ROOT / "requirements.lock").read_text("utf-8")

    for group in ("test-model", "test-database"):
        names = [Requirement(text).name for text in groups[group]]
        assert f"{group.replace('-', '_')}='{'|'.join(names)}'" in script
        assert all(re.search(rf"^{name}==", lock, re.MULTILINE) for name in names)
    assert not re.search(r"^(llm|llama-cpp-python)==", lock, re.MULTILINE)
