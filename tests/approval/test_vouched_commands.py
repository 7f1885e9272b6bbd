"""Run every command that needs no approval next to canaries: only its output may change.

Every option of every table is run at least once, then combinations of options, `sed` and `awk` programs and known
attacks. Only commands that the policy allows under a rule for the whole shell are run.
"""

import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from verdicts import judge, read_scope
from vouched_candidates import ATTACKS, OPERANDS, VALUES, generate_awk, generate_sed

from metier.tools.process.child_environment import build_environment
from metier.tools.shell.allowlist import is_direct
from metier.tools.shell.bash import QUIET, PosixShell, expand_line
from metier.tools.shell.harmless import Table, load_tables
from metier.tools.shell.line import ShellLine, parse_line
from metier.tools.shell.programs import SAME_TABLE

BATCH = 150
COMBINATIONS = 6
MIN_COMMANDS = 2_000
ANYTHING = read_scope("rules: [{tool: Bash, allow: true}]")
CANARIES = ("gpg", "gpg2", "ssh", "vi", "editor", "nano", "pager", "pr", "curl", "wget", "xdg-open", "sensible-editor")
"""Programs that a command might start; each records that it ran."""
SETTINGS = ("core.pager", "core.editor", "core.fsmonitor", "core.sshCommand", "gpg.program", "sequence.editor")
"""Settings of git that name programs, which a command that only looks must not start."""
SLOW = ("npm", "pip", "node")
"""Two commands of each are enough: they take half a second."""
SHELL_ONLY = ("cd", "command", "type")


class Canaries:
    """A scratch workspace with a home folder, programs and an address that record every use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace, self.home = root / "workspace", root / "home"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.mark = uuid.uuid4().hex
        self._template = root.parent / f"{root.name}-template"
        self._build()

    def environment(self) -> dict[str, str]:
        """Build the environment of `Bash`, with canaries instead of the user's folders and proxies."""
        address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        base = {
            **os.environ, "HOME": str(self.home), "TMPDIR": str(self.root / "tmp"), "HTTP_PROXY": address,
            "http_proxy": address, "https_proxy": address,
            "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        return build_environment(base) | QUIET | {"PWD": str(self.workspace), "CANARY": self.mark}

    def reset(self) -> None:
        """Create a fresh copy and a new mark, so that a process of an earlier batch is not found again."""
        self.mark = uuid.uuid4().hex
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self._template, self.root, symlinks=True)

    def snapshot(self) -> dict[str, tuple[int, int, str]]:
        """Return every file with its mode, time and content."""
        found: dict[str, tuple[int, int, str]] = {}
        for folder, folders, files in os.walk(self.root):
            for name in [*folders, *files]:
                path = Path(folder, name)
                status = path.lstat()
                content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                found[str(path.relative_to(self.root))] = (status.st_mode, status.st_mtime_ns, content)
        # `git diff` writes the times of files that it looked at into its index; what is in the index stays.
        index = subprocess.run(
            ["git", "ls-files", "-s"], cwd=self.workspace, env=self.environment(), capture_output=True, check=True
        ).stdout
        found["workspace/.git/index"] = (0, 0, hashlib.sha256(index).hexdigest())
        found["workspace/.git"] = (found["workspace/.git"][0], 0, "")
        # `tac` and `sort` create a temporary file there and delete it at once.
        found["tmp"] = (found["tmp"][0], 0, "")
        return found

    def list_changes(self, before: dict[str, tuple[int, int, str]]) -> list[str]:
        after = self.snapshot()
        changes = [f"file {name}" for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        changes += [f"process {pid}" for pid in self._list_processes()]
        try:
            self.listener.accept()[0].close()
            changes.append("network connection")
        except BlockingIOError:
            pass
        return sorted(changes)

    def _list_processes(self) -> Iterator[str]:
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and folder.name != str(os.getpid()):
                try:
                    if self.mark.encode() in (folder / "environ").read_bytes():
                        yield folder.name
                except OSError:
                    continue

    def _build(self) -> None:
        for folder in (self.workspace / "src" / "deep", self.home, self.root / "tmp", self.root / "bin"):
            folder.mkdir(parents=True)
        canary = f'#!/bin/sh\necho "$0 $*" >> {shlex.quote(str(self.root / "started"))}\n'
        for name in (*CANARIES, "canary"):
            (self.root / "bin" / name).write_text(canary)
            (self.root / "bin" / name).chmod(0o755)
        for name in OPERANDS["files"]:
            (self.workspace / name).write_text("a,1\nb,2\nimport x\nsome words here\n")
        (self.workspace / "package.json").write_text('{"name": "x"}\n')
        (self.workspace / "pyproject.toml").write_text("[tool.ruff]\nfix = true\n")
        registry = f"http://127.0.0.1:{self.listener.getsockname()[1]}/"
        (self.home / ".npmrc").write_text(f"registry={registry}\n")
        (self.home / ".config" / "pip").mkdir(parents=True)
        (self.home / ".config" / "pip" / "pip.conf").write_text(f"[global]\nindex-url = {registry}\n")
        self._build_repository(registry)
        shutil.copytree(self.root, self._template, symlinks=True)

    def _build_repository(self, remote: str) -> None:
        def git(*words: str, text: str = "") -> str:
            who = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
            environ = {"PATH": os.environ["PATH"], "HOME": str(self.home), **who}
            done = subprocess.run(
                ["git", *words], cwd=self.workspace, env=environ, input=text, text=True, capture_output=True, check=True
            )
            return done.stdout.strip()

        git("init", "-q", "-b", "main")
        git("add", ".")
        git("commit", "-q", "-m", "first")
        # A signed commit: showing its signature would start gpg.
        signed = git("cat-file", "commit", "HEAD").replace(
            "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n", 1
        )
        git("reset", "-q", "--hard", git("hash-object", "-t", "commit", "-w", "--stdin", text=f"{signed}\n"))
        git("tag", "-a", "v1", "-m", "one")
        (self.workspace / "README.md").write_text("changed\n")
        git("stash", "-q")
        (self.workspace / "README.md").write_text("changed again\n")
        git("remote", "add", "origin", f"{remote}x.git")
        for name in SETTINGS:
            git("config", name, str(self.root / "bin" / "canary"))


@contextmanager
def open_canaries(root: Path) -> Generator[Canaries]:
    canaries = Canaries(root)
    try:
        yield canaries
    finally:
        canaries.listener.close()


def is_allowed(line: str) -> bool:
    return judge([ANYTHING], "Bash", {"command": line}).verdict.decision == "allow"


def is_installed(line: str) -> bool:
    parsed = parse_line(line)
    assert isinstance(parsed, ShellLine)
    return all(each.argv[0] in SHELL_ONLY or shutil.which(each.argv[0]) for each in parsed.commands)


def run_line(text: str, canaries: Canaries) -> bool:
    """Run a line like `Bash` does, without a sandbox. Return False if it does not end."""
    line, shell, environment = parse_line(text), PosixShell(), canaries.environment()
    assert isinstance(line, ShellLine)
    expanded = expand_line(line, str(canaries.workspace))
    argv = shell.run_line(expanded) if is_direct(expanded) else shell.run_text(text, path=environment["PATH"])
    null = subprocess.DEVNULL
    try:
        subprocess.run(
            argv,
            cwd=canaries.workspace,
            env=environment,
            stdin=null,
            stdout=null,
            stderr=null,
            timeout=100,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return True


def find_effects(lines: Sequence[str], canaries: Canaries) -> dict[str, list[str]]:
    """Run the lines in one workspace; if something changed, find the responsible line."""
    canaries.reset()
    before = canaries.snapshot()
    has_ended = [run_line(line, canaries) for line in lines]
    changes = canaries.list_changes(before) + ([] if all(has_ended) else ["no end"])
    if not changes:
        return {}
    if len(lines) == 1:
        return {lines[0]: changes}
    half = len(lines) // 2
    return find_effects(lines[:half], canaries) | find_effects(lines[half:], canaries)


def write_options(table: Table, name: str, value: str) -> list[list[str]]:
    """Return the ways to write an option."""
    is_long = name.startswith("--") or table.is_single
    match table.options[name]:
        case "nothing":
            return [[name]]
        case "word":
            return [[name, value]]
        case "attached":
            return [[name], [f"{name}={value}" if is_long else name + value]]
        case "value":
            return [[name, value], [f"{name}={value}" if is_long else name + value]]


def choose_operands(table: Table, command: str, random: Random) -> list[str]:
    if command == "sleep":
        return ["0"]
    match table.operands:
        case "none":
            return []
        case "plus":
            return random.sample(["+%F", "+x"], random.randint(0, 1))
        case "sed":
            return [next(generate_sed(random)), "README.md"]
        case "awk":
            return [next(generate_awk(random)), "README.md"]
        case "words" if table.among:
            return [random.choice(sorted(table.among))]
        case _:
            pool = [*OPERANDS["files"], *OPERANDS["words"]]
            return random.sample(pool, random.choice((0, 1, 1, 2, 2, 3)))


def generate_commands(command: str, table: Table, random: Random) -> Iterator[list[str]]:
    needed = [[name] for name in sorted(table.needs)] or [[]]
    names = list(table.options)
    if table.options.keys() >= {"-#"}:
        names.remove("-#")
    chosen = [[name] for name in names]
    chosen += [random.sample(names, min(len(names), random.randint(0, 4))) for _ in range(COMBINATIONS)]
    for names in chosen:
        options = [random.choice(write_options(table, name, random.choice(VALUES))) for name in names]
        flags = [each[0][1:] for each in options if len(each) == 1 and len(each[0]) == 2]
        if len(flags) > 1 and random.random() < 0.5:
            # Short options in one word, the last of them with its value in the next.
            valued = next((each for each in options if len(each) == 2 and len(each[0]) == 2), list[str]())
            rest = [each for each in options if len(each[0]) != 2]
            options = [*rest, ["-" + "".join(flags) + (valued[0][1:] if valued else ""), *valued[1:]]]
        words = [word for each in [random.choice(needed), *options] for word in each]
        yield [*command.split(), *words, *choose_operands(table, command, random)]
    if table.is_open:
        for _ in range(COMBINATIONS):
            yield [*command.split(), *random.sample([*VALUES, *OPERANDS["options"]], random.randint(0, 3))]


def list_candidates() -> list[str]:
    random = Random(27)
    names = {**{name: name for name in load_tables()}, **SAME_TABLE}
    found = [
        shlex.join(words)
        for command, name in names.items()
        for table in load_tables()[name]
        if not table.acts
        for words in islice(generate_commands(command, table, random), 2 if command.startswith(SLOW) else None)
    ]
    found += [f"awk {shlex.quote(each)} README.md" for each in islice(generate_awk(random), 300)]
    found += [f"sed {shlex.quote(each)} README.md" for each in islice(generate_sed(random), 300)]
    return list(dict.fromkeys([*ATTACKS, *found]))


@pytest.mark.slow
@pytest.mark.timeout(900)  # two thousand programs
def test_a_command_that_needs_no_approval_has_no_side_effects(tmp_path: Path) -> None:
    installed = [line for line in list_candidates() if is_allowed(line) and is_installed(line)]
    effects: dict[str, list[str]] = {}

    with open_canaries(tmp_path / "scratch") as canaries:
        for start in range(0, len(installed), BATCH):
            effects |= find_effects(installed[start : start + BATCH], canaries)

    assert effects == {}
    assert len(installed) >= MIN_COMMANDS
