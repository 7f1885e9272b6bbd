"""Type in what a page of the documentation shows, as a reader would, and compare what is printed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(
    r"<!-- (?P<mark>test|file: (?P<path>[^ ]+)) -->\n```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


def follow(page: Path, *, folder: Path, home: Path) -> int:
    """Write the files and run the commands of a page in order; how many commands there were."""
    ran = 0
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["path"]:
            file = folder / block["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block["text"], "utf-8")
            continue
        for command, shown in find_commands(block["text"]):
            printed = type_in(command, folder=folder, home=home)
            for line in shown:
                assert matches(line, printed), f"$ {command}\n{printed}\nhas no line like: {line}"
            ran += 1
    return ran


def find_commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each `$` line with the lines below it."""
    for piece in text.split("$ ")[1:] if text.startswith("$ ") else []:
        command, *shown = piece.rstrip("\n").split("\n")
        yield command, shown


def type_in(command: str, *, folder: Path, home: Path) -> str:
    ordinary = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT_", "XDG_CONFIG"))}
    environment = {
        **ordinary,
        "HOME": str(home),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONIOENCODING": "utf-8",
        "TERM": "xterm",
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
