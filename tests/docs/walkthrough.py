"""Type in what a page of the documentation shows, as a reader would, and compare what is printed."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_forks import forked_agent

BLOCK = re.compile(
    r"<!-- (?P<mark>test(?: with (?P<needs>\w+))?|file: (?P<path>[^ ]+)) -->\n```\w*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{12}")
MOST_SECONDS = 120.0
"""That a command may take."""
EXPORT = re.compile(r'export (\w+)="?([^"]*)"?')


@dataclass(frozen=True, slots=True)
class Reader:
    """Where somebody types, and what he has."""

    folder: Path
    home: Path
    has: str = ""
    """What some blocks need (`test with …`): then those are followed, else the others."""
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the page says and what it is here; only in what is exported."""
    exported: dict[str, str] = field(default_factory=dict[str, str])


def follow(page: Path, *, folder: Path, home: Path) -> int:
    """Write the files and run the commands of a page in order; how many commands there were."""
    return read_through(page, Reader(folder=folder, home=home))


def read_through(page: Path, reader: Reader) -> int:
    ran = 0
    folder = reader.folder
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["path"]:
            file = folder / block["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block["text"], "utf-8")
            continue
        if (block["needs"] or "") != reader.has:
            continue
        for command, shown in find_commands(block["text"]):
            ran += 1
            if exported := EXPORT.fullmatch(command):
                value = exported[2]
                for said, meant in reader.addresses.items():
                    value = value.replace(said, meant)
                reader.exported[exported[1]] = value
                continue
            printed = type_in(command, reader, until=shown)
            for line in shown:
                assert matches(line, printed), f"$ {command}\n{printed}\nhas no line like: {line}"
    return ran


def find_commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each `$` line with the lines below it."""
    for piece in text.split("$ ")[1:] if text.startswith("$ ") else []:
        command, *shown = piece.rstrip("\n").split("\n")
        yield command, shown


def type_in(command: str, reader: Reader, *, until: Sequence[str] = ()) -> str:
    """What a command prints until it ends; a worker does not by itself, and is told to when it has shown all of it."""
    ordinary = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT_", "XDG_CONFIG"))}
    environment = {
        **ordinary,
        "HOME": str(reader.home),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        "PATH": os.pathsep.join([str(forked_agent().parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONIOENCODING": "utf-8",
        "TERM": "xterm",
        **reader.exported,
    }
    stays = command.startswith("agent worker") and "--once" not in command
    printed = ""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}" if stays else command],
        cwd=reader.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        patience = threading.Timer(MOST_SECONDS, process.kill)
        patience.start()
        for line in process.stdout:
            printed += line.decode()
            if stays and all(matches(one, printed) for one in until):
                process.send_signal(signal.SIGTERM)
                stays = False
        patience.cancel()
    assert process.returncode == 0, f"$ {command}\n{printed}"
    return printed


def matches(line: str, printed: str) -> bool:
    """`…` in the page stands for anything, and the id of a run for any other."""
    pattern = ".*".join(re.escape(piece) for piece in RUN_ID.sub("…", line).split("…"))
    return any(re.fullmatch(pattern, found) for found in printed.splitlines())
