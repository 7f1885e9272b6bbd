"""Type in what a page of the documentation shows, as a reader would, and compare what is printed."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from blocks import Block, read_blocks

from agent_command import AGENT, run_agent

ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{12}|ap-[0-9a-f]+")
"""Of a run, of an approval: another each time. Where a page shows one, later commands mean the one that was printed."""
MAX_SECONDS = 120.0
"""That a command may take."""
SHELL_SYNTAX = re.compile(r"[|&;<>$`*?~(){}!#\\\n]")
QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
EXPORT = re.compile(r'export (\w+)="?([^"$]*)"?')


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader's folder and environment."""

    folder: Path
    home: Path
    has: str = ""
    """Requirement of some blocks (`test with …`): if it is met those run, otherwise the others."""
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text on the page, and its value here."""
    exported: dict[str, str] = field(default_factory=dict[str, str])
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def translate(self, text: str) -> str:
        for said, meant in {**self.addresses, **self.ids}.items():
            text = text.replace(said, meant)
        return text


def follow(page: Path, *, folder: Path, home: Path) -> int:
    """Write the files and run the commands of a page in order; how many commands there were."""
    return read_through(page, Reader(folder=folder, home=home))


def read_through(page: Path, reader: Reader) -> int:
    ran = 0
    with ExitStack() as terminals:
        for block in read_blocks(page):
            meaning = block.meaning
            if path := meaning.get("path"):
                file = reader.folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, "utf-8")
            elif block.is_typed and (meaning.get("has") or "") == reader.has:
                for command, shown, code in find_commands(block):
                    ran += 1
                    if meaning.get("apart"):
                        terminals.enter_context(left_running(command, reader, shown))
                    else:
                        _follow_command(command, reader, shown, code)
    return ran


def _follow_command(command: str, reader: Reader, shown: Sequence[str], code: int) -> None:
    if exported := EXPORT.fullmatch(command):
        reader.exported[exported[1]] = reader.translate(exported[2])
        return
    printed = type_in(command, reader, until=shown, code=code)
    for line in shown:
        assert matches(line, printed, reader), f"$ {command}\n{printed}\nhas no line like: {line}"


def find_commands(block: Block) -> Iterator[tuple[str, list[str], int]]:
    """Each `$` line with the lines below it and how it ends."""
    pieces = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not pieces[0].strip(), f"{block.where}: begins without a command"
    for number, piece in enumerate(pieces[1:], 2):
        command, *shown = piece.rstrip("\n").replace("\\\n", "").split("\n")
        last = number == len(pieces)
        yield command, [line for line in shown if line.strip()], int(block.meaning.get("code") or 0) if last else 0


def _build_environment(reader: Reader) -> dict[str, str]:
    ordinary = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT_", "XDG_CONFIG"))}
    return {
        **ordinary,
        "HOME": str(reader.home),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        "PATH": os.pathsep.join([str(AGENT.parent), os.environ["PATH"]]),
        "PYTHONIOENCODING": "utf-8",
        "TERM": "xterm",
        **reader.exported,
    }


def _start(command: str, reader: Reader, *, stays: bool) -> subprocess.Popen[bytes]:
    command = reader.translate(command)
    return subprocess.Popen(
        ["bash", "-c", f"exec {command}" if stays else command],
        cwd=reader.folder,
        env=_build_environment(reader),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def type_in(command: str, reader: Reader, *, until: Sequence[str] = (), code: int = 0) -> str:
    """Return a command's output. A worker doesn't end by itself and is stopped after it printed all of it."""
    stays = command.startswith("agent worker") and "--once" not in command
    if command.startswith("agent ") and not stays and not SHELL_SYNTAX.search(QUOTED.sub("", command)):
        words = shlex.split(reader.translate(command))[1:]
        done = run_agent(*words, cwd=reader.folder, env=_build_environment(reader))
        printed = done.stdout + done.stderr
        assert done.returncode == code, f"$ {command}\n{printed}\nended with exit code {done.returncode}"
        return printed
    printed = ""
    with _start(command, reader, stays=stays) as process:
        assert process.stdout is not None
        patience = threading.Timer(MAX_SECONDS, process.kill)
        patience.start()
        for line in process.stdout:
            printed += line.decode()
            if stays and all(matches(one, printed, reader) for one in until):
                process.send_signal(signal.SIGTERM)
                stays = False
        patience.cancel()
    assert process.returncode == code, f"$ {command}\n{printed}\nended with exit code {process.returncode}"
    return printed


@contextlib.contextmanager
def left_running(command: str, reader: Reader, shown: Sequence[str]) -> Generator[None]:
    """A command in a terminal of its own: it has printed what the page shows, and is stopped when the page ends."""
    with _start(command, reader, stays=True) as process:
        assert process.stdout is not None
        patience = threading.Timer(MAX_SECONDS, process.kill)
        patience.start()
        printed = ""
        while not all(matches(line, printed, reader) for line in shown):
            line = process.stdout.readline().decode()
            assert line, f"$ {command}\n{printed}\nended"
            printed += line
        patience.cancel()
        # What it prints from here on is read and dropped, so that it never waits for a full pipe.
        drain = threading.Thread(target=process.stdout.read)
        drain.start()
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            patience = threading.Timer(MAX_SECONDS, process.kill)
            patience.start()
            drain.join()
            patience.cancel()
    assert process.returncode == 0, f"$ {command}\nended with exit code {process.returncode}"


def _escape(text: str) -> str:
    """Columns may be wider than on the page."""
    return re.sub(r"(?:\\ ){2,}", r"\\s{2,}", re.escape(text))


def matches(line: str, printed: str, reader: Reader) -> bool:
    """`…` in the page stands for anything, and the first id that it shows for the one that is printed there."""
    said = ID.findall(line)
    pieces = ID.split(line)
    pattern = f"({ID.pattern})".join(
        ".*".join(_escape(reader.translate(part)) for part in piece.split("…")) for piece in pieces
    )
    for found in printed.splitlines():
        if match := re.fullmatch(pattern, found):
            reader.ids.update(zip(said, match.groups(), strict=True))
            return True
    return False
