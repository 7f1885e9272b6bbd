"""The page on callable skills, typed in by a reader who starts in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "capabilities.md"
BLOCK = re.compile(
    r"<!-- (?P<mark>test|file: (?P<path>[^ ]+)) -->\n```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@pytest.mark.timeout(600)
def test_every_command_of_the_page_works_and_shows_what_the_page_says(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    ran = 0

    for block in BLOCK.finditer(PAGE.read_text("utf-8")):
        if block["path"]:
            (folder / block["path"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / block["path"]).write_text(block["text"], "utf-8")
            continue
        for piece in block["text"].split("$ ")[1:]:
            command, *shown = piece.rstrip("\n").split("\n")
            printed = type_in(command, folder=folder, home=home)
            for line in shown:
                assert matches(line, printed), f"$ {command}\n{printed}\nhas no line like: {line}"
            ran += 1

    assert ran >= 9


def type_in(command: str, *, folder: Path, home: Path) -> str:
    ordinary = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT_", "XDG_CONFIG"))}
    environment = {
        **ordinary,
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    printed = done.stdout.decode()
    assert done.returncode == 0, f"$ {command}\n{printed}"
    return printed


def matches(line: str, printed: str) -> bool:
    """`…` in the page stands for anything."""
    pattern = ".*".join(re.escape(piece) for piece in line.split("…"))
    return any(re.fullmatch(pattern, found) for found in printed.splitlines())
