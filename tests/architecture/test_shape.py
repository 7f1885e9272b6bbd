"""Limits of STYLE as tests: sizes, names, and what a start-up may import. The sets of offenders only shrink."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_facts import ROOT, SOURCE, read_sources

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60
MAX_TOP_LEVEL_FILES = 9
VAGUE_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py", "manager.py", "util.py", "helper.py"}
VAGUE_CLASS_WORDS = ("Manager", "Handler", "Helper", "Processor", "Abstract", "Impl")

TOO_LONG: frozenset[str] = frozenset()
"""Known offenders, as `path` or `path:function`. This set only shrinks."""


def our_files() -> list[Path]:
    return [file.path for file in read_sources() if file.is_ours]


@pytest.mark.slow
def test_files_and_functions_stay_short() -> None:
    offenders: set[str] = set()
    for file in read_sources():
        name = file.path.relative_to(ROOT).as_posix()
        if file.lines > MAX_FILE_LINES:
            offenders.add(name)
        offenders |= {f"{name}:{function}" for function, lines in file.functions if lines > MAX_FUNCTION_LINES}

    assert offenders == TOO_LONG


def test_files_and_classes_are_named_after_a_noun() -> None:
    vague_files = {path.name for path in our_files()} & VAGUE_NAMES
    vague_classes = {
        f"{file.path.name}:{name}"
        for file in read_sources()
        if file.is_ours
        for name in file.classes
        if any(word in name for word in VAGUE_CLASS_WORDS)
    }

    assert vague_files == set()
    assert vague_classes == set()


def test_every_file_has_a_module_docstring() -> None:
    silent = [file.path.relative_to(ROOT).as_posix() for file in read_sources() if file.is_ours and file.is_silent]

    assert silent == []


def test_only_packages_of_the_public_api_export_names() -> None:
    filled = [path for path in sorted(SOURCE.glob("*/**/__init__.py")) if path.read_text(encoding="utf-8").strip()]

    assert filled == [SOURCE / "events" / "__init__.py", SOURCE / "tools" / "toolsets" / "__init__.py"]


def test_top_level_has_few_modules() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= MAX_TOP_LEVEL_FILES


def test_unfinished_work_is_not_in_the_source() -> None:
    marks = ("NotImplementedError", "TODO", "FIXME", "XXX")
    found = [
        f"{path.relative_to(ROOT).as_posix()}: {mark}"
        for path in our_files()
        for mark in marks
        if mark in path.read_text(encoding="utf-8") and path.name not in WHERE_MARKS_ARE_SUBJECT
    ]

    assert found == []


WHERE_MARKS_ARE_SUBJECT: frozenset[str] = frozenset()


def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_version_and_help_import_no_heavy_library() -> None:
    heavy = "pydantic rich.table rich.console yaml jsonschema httpx2 anthropic openai google mcp fastapi celery psycopg"
    for flag in ("--version", "--help"):
        code = (
            "import sys\nfrom metier.cli.main import run\n"
            f"run(['{flag}'])\nprint([m for m in '{heavy}'.split() if m in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert done.stderr.strip().splitlines()[-1] == "[]"


def test_machine_paths_and_package_indexes_are_not_in_the_repository() -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    forbidden = ("pypi" + ".org", "pythonhosted" + ".org", "--index" + "-url", "/ro" + "ot/.", "/wo" + "rk/")
    found = [
        f"{name}: {word}"
        for name in files.split("\0")
        if name and (ROOT / name).is_file()
        for word in forbidden
        if word in (ROOT / name).read_text(encoding="utf-8", errors="replace")
    ]

    assert found == []


def test_commands_write_through_the_output_boundary() -> None:
    """Streams of text and the command that redacts have a boundary of their own."""
    own = {
        "cli/chat/terminal.py",
        "cli/completion.py",
        "cli/main.py",
        "cli/redact.py",
        "cli/root.py",
        "cli/run/live.py",
        "cli/shared/output.py",
    }
    rooms = (SOURCE / "cli", SOURCE / "worker")
    writers = {
        path.relative_to(SOURCE).as_posix()
        for room in rooms
        for path in room.rglob("*.py")
        if re.search(r"sys\.stdout\.write\(|typer\.echo\(|[^_.\w]print\(", path.read_text(encoding="utf-8"))
    }

    assert writers - own == set()
