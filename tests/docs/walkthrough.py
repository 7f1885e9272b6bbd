"""Execute the commands of a documentation page like a reader, and compare their output."""

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
"""ID of a run or an approval. An ID on a page stands for the one that was printed at that place."""
MAX_SECONDS = 120.0
"""Time limit of a command."""
SHELL_SYNTAX = re.compile(r"[|&;<>$`*?~(){}!#\\\n]")
QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
EXPORT = re.compile(r'export (\w+)="?([^"$]*)"?')


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader's folder and environment."""

    folder: Path
    home: Path
    has: str = ""
    """Requirement that is met (`test with …`): blocks with it run instead of the others."""
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text on the page and its replacement."""
    exported: dict[str, str] = field(default_factory=dict[str, str])
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def translate(self, text: str) -> str:
        for shown, actual in {**self.addresses, **self.ids}.items():
            text = text.replace(shown, actual)
        return text


def follow(page: Path, *, folder: Path, home: Path) -> int:
    """Write the files and run the commands of a page in order. Return the number of commands."""
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
    """Yield each `$` line with the lines below it and its exit code."""
    pieces = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not pieces[0].strip(), f"{block.where}: starts without a command"
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
    """Return a command's output. A worker is stopped after it printed the expected lines."""
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
        watchdog = threading.Timer(MAX_SECONDS, process.kill)
        watchdog.start()
        for line in process.stdout:
            printed += line.decode()
            if stays and all(matches(one, printed, reader) for one in until):
                process.send_signal(signal.SIGTERM)
                stays = False
        watchdog.cancel()
    assert process.returncode == code, f"$ {command}\n{printed}\nended with exit code {process.returncode}"
    return printed


@contextlib.contextmanager
def left_running(command: str, reader: Reader, shown: Sequence[str]) -> Generator[None]:
    """Run a command in the background: wait for the shown lines, and stop it at the end of the page."""
    with _start(command, reader, stays=True) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(MAX_SECONDS, process.kill)
        watchdog.start()
        printed = ""
        while not all(matches(line, printed, reader) for line in shown):
            line = process.stdout.readline().decode()
            assert line, f"$ {command}\n{printed}\nended"
            printed += line
        watchdog.cancel()
        # Drain further output, so that the program never blocks on a full pipe.
        drain = threading.Thread(target=process.stdout.read)
        drain.start()
        is_killed = False
        try:
            yield
        finally:
            is_killed = process.poll() == -signal.SIGKILL  # by a command of the page
            process.send_signal(signal.SIGTERM)
            watchdog = threading.Timer(MAX_SECONDS, process.kill)
            watchdog.start()
            drain.join()
            watchdog.cancel()
    assert process.returncode == (-signal.SIGKILL if is_killed else 0), (
        f"$ {command}\nended with exit code {process.returncode}"
    )


def _escape(text: str) -> str:
    """Escape a line for a regular expression that allows wider columns."""
    return re.sub(r"(?:\\ ){2,}", r"\\s{2,}", re.escape(text))


def matches(line: str, printed: str, reader: Reader) -> bool:
    """Match a line of the page: `…` matches anything, and an ID the one that was printed."""
    shown = ID.findall(line)
    pieces = ID.split(line)
    pattern = f"({ID.pattern})".join(
        ".*".join(_escape(reader.translate(part)) for part in piece.split("…")) for piece in pieces
    )
    for found in printed.splitlines():
        if match := re.fullmatch(pattern, found):
            reader.ids.update(zip(shown, match.groups(), strict=True))
            return True
    return False
