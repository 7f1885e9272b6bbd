"""The base install of `pip install metier` without extras: its size, and hints about missing parts."""

import contextlib
import json
import os
import pty
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
MAX_MEGABYTES = 75
"""With bytecode. The goal is 60; prompt-toolkit with wcwidth takes 10 MB of it, rapidfuzz 12."""

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the package and its requirements in the locked versions."""
    folder = tmp_path_factory.mktemp("base")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    uv = [str(PROGRAMS / "uv"), "--no-config", "--quiet"]
    env = {**os.environ, "UV_SYSTEM_CERTS": "1", "VIRTUAL_ENV": str(folder / "env")}
    subprocess.run([*uv, "venv", "--python", sys.executable, str(folder / "env")], env=env, check=True)
    lock = ["--constraints", str(ROOT / "requirements.lock")]
    subprocess.run([*uv, "pip", "install", "--compile-bytecode", *lock, str(wheel)], env=env, check=True)
    return folder / "env"


def test_source_archive_builds_the_same_wheel(base: Path, tmp_path: Path) -> None:
    """A build from the sdist has the same files as the wheel: skills, templates, prompts and pages."""
    build = [sys.executable, "-m", "hatchling", "build"]
    subprocess.run([*build, "-t", "sdist", "-d", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    subprocess.run([*build, "-t", "wheel", "-d", str(tmp_path)], cwd=source, check=True, capture_output=True)

    (first,) = (base.parent / "dist").glob("*.whl")
    (second,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def run_agent(base: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HOME": str(cwd)}
    return subprocess.run([base / "bin" / "agent", *words], cwd=cwd, env=env, capture_output=True, text=True)


def test_the_base_install_is_small(base: Path) -> None:
    size = sum(file.stat().st_size for file in base.rglob("*") if file.is_file() and not file.is_symlink())

    assert size <= MAX_MEGABYTES * 1_000_000, f"{size / 1_000_000:.1f} MB"


def test_a_missing_component_is_named_with_its_install_command(base: Path, tmp_path: Path) -> None:
    doctor = run_agent(base, "doctor", "--json", cwd=tmp_path)

    (uv,) = [finding for finding in json.loads(doctor.stdout) if finding["name"] == "uv"]
    assert uv["state"] == "off", doctor.stderr
    assert read_command(uv["hint"], "scripts").startswith("uv pip install --python ")


def read_command(hint: str, extra: str) -> str:
    """Return the command of a hint, which installs the extra from the original wheel."""
    command = hint.partition("Install it: ")[2]
    assert f"'metier[{extra}] @ file:///" in command, hint
    assert ".whl'" in command
    return command


def test_the_command_of_a_hint_installs_the_extra(base: Path, tmp_path: Path) -> None:
    doctor = run_agent(base, "doctor", "--json", cwd=tmp_path)

    (uv,) = [finding for finding in json.loads(doctor.stdout) if finding["name"] == "uv"]
    command = shlex.split(read_command(uv["hint"], "scripts"))
    env = {**os.environ, "UV_SYSTEM_CERTS": "1", "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    lock = ["--constraints", str(ROOT / "requirements.lock"), "--no-config"]
    done = subprocess.run([*command, "--dry-run", *lock], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "+ uv==" in done.stderr


def test_a_hint_does_not_name_a_deleted_wheel(base: Path, tmp_path: Path) -> None:
    (wheel,) = (base.parent / "dist").glob("*.whl")
    wheel.rename(tmp_path / wheel.name)
    try:
        doctor = run_agent(base, "doctor", "--json", cwd=tmp_path)
    finally:
        (tmp_path / wheel.name).rename(wheel)

    (uv,) = [finding for finding in json.loads(doctor.stdout) if finding["name"] == "uv"]
    assert uv["hint"].endswith("'metier[scripts] @ file:///PATH/TO/METIER'")


def test_a_script_with_dependencies_gets_a_hint_with_the_required_extra(base: Path, tmp_path: Path) -> None:
    write_greeter(tmp_path, "# /// script\n# dependencies = ['rich']\n# ///\nprint('hello')\n")

    said = run_agent(base, "skill", "run", "greeter", "greet", cwd=tmp_path)

    assert said.returncode != 0
    assert "Install it: uv pip install --python" in said.stdout + said.stderr
    assert "metier[scripts] @ file:///" in said.stdout + said.stderr


def test_a_script_without_dependencies_needs_no_extra(base: Path, tmp_path: Path) -> None:
    write_greeter(tmp_path, 'print("hello")\n')

    said = run_agent(base, "skill", "run", "greeter", "greet", cwd=tmp_path)

    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["result"] == "hello\n"


def write_greeter(folder: Path, script: str) -> None:
    skill = folder / "skills/greeter"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: greeter\ndescription: Greets.\n---\n\nGreet.\n", encoding="utf-8")
    (skill / "scripts/greet.py").write_text(script, encoding="utf-8")


def test_an_embedding_model_gets_a_hint_with_the_extra_and_ranking_uses_words(base: Path, tmp_path: Path) -> None:
    for name in ("model/model.safetensors", "model/tokenizer.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "agent.yaml").write_text("routing: {embeddings: {folder: model}}\n", encoding="utf-8")
    (tmp_path / "skills/piano").mkdir(parents=True)
    (tmp_path / "skills/piano/SKILL.md").write_text("---\nname: piano\ndescription: Tune it.\n---\n", encoding="utf-8")

    routed = run_agent(base, "skills", "route", "tune the piano", cwd=tmp_path)
    checked = run_agent(base, "check", cwd=tmp_path)

    assert routed.returncode == checked.returncode == 0, checked.stderr
    assert routed.stdout.split()[1] == "piano"
    for said in (routed.stderr, checked.stderr):
        assert "is not installed" in said
        assert read_command(said, "embeddings")


def test_command_suggestions_need_no_extra(base: Path, tmp_path: Path) -> None:
    assert "Did you mean 'runs'?" in run_agent(base, "rnus", cwd=tmp_path).stderr


def test_a_run_needs_no_extra(base: Path, tmp_path: Path) -> None:
    run = run_agent(base, "run", "--provider", "offline", "Say hello", cwd=tmp_path)

    assert "no_skill" in run.stderr


def test_a_chat_at_a_terminal_has_a_prompt_with_completion(base: Path, tmp_path: Path) -> None:
    ours, its = pty.openpty()
    env = {**os.environ, "HOME": str(tmp_path), "TERM": "xterm", "NO_COLOR": "1"}
    command = [base / "bin" / "agent", "chat", "--provider", "offline"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=its, stdout=its, stderr=its) as chat:
        os.close(its)
        os.write(ours, b"/qu\t\r")
        shown = b""
        # The terminal ends with an error when the last process has closed it.
        with contextlib.suppress(OSError):
            while read := os.read(ours, 4096):
                shown += read
    os.close(ours)

    assert chat.returncode == 0, shown
    assert b"/quit" in shown
    assert b"not installed" not in shown


@pytest.mark.parametrize(
    ("mark", "command"),
    [
        ("uv-receipt.toml", "uv tool install --force 'metier[scripts] @ file:///"),
        ("pipx_metadata.json", "pipx install --force 'metier[scripts] @ file:///"),
    ],
)
def test_the_install_command_matches_how_metier_was_installed(
    mark: str, command: str, base: Path, tmp_path: Path
) -> None:
    (base / mark).touch()
    try:
        doctor = run_agent(base, "doctor", "--json", cwd=tmp_path)
    finally:
        (base / mark).unlink()

    (uv,) = [finding for finding in json.loads(doctor.stdout) if finding["name"] == "uv"]
    assert f"Install it: {command}" in uv["hint"]
