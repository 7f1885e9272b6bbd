"""The `git` of evals: read one commit of a local repository, make the history of a case. Runs no hook and no filter."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from metier.errors import UsageError
from metier.evals.format.case import Commit
from metier.skills.trusted_programs import build_trusted_environment, find_trusted_program

_TIMEOUT_SECONDS = 60
_PLAIN = {b"100644": 0o644, b"100755": 0o755}
_IDENTITY = {"NAME": "Eval", "EMAIL": "eval@example.org", "DATE": "2026-01-01T00:00:00+00:00"}
_SETTINGS = (
    *("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "commit.gpgsign=false"),
    *("-c", "safe.directory=*"),
)


def find_commit(folder: Path, ref: str = "HEAD") -> str:
    """The full id of a commit; empty where there is no repository or no such commit."""
    if ref.startswith("-"):
        return ""
    return _git(folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").decode().strip()


def write_tree(folder: Path, commit: str, into: Path) -> None:
    """The files of `folder` as they were in the commit. Raises `UsageError` where it had none."""
    listed = _git(folder, "ls-tree", "-r", "-z", "--full-tree", f"{commit}:{_find_prefix(folder)}".rstrip(":"))
    files = [line for line in listed.split(b"\0") if line]
    if not files:
        raise UsageError(f"There is no {folder.name!r} in commit {commit[:12]}", hint="Name a commit that has it")
    for line in files:
        facts, _, name = line.partition(b"\t")
        mode, _, digest = facts.split()
        path = Path(name.decode("utf-8", "surrogateescape"))
        if mode not in _PLAIN or path.is_absolute() or ".." in path.parts:
            continue  # links and submodules are no part of a skill
        file = into / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_git(folder, "cat-file", "blob", digest.decode()))
        file.chmod(_PLAIN[mode])


def _find_prefix(folder: Path) -> str:
    return _git(folder, "rev-parse", "--show-prefix").decode().strip().rstrip("/")


def make_history(workspace: Path, commits: Sequence[Commit], *, is_committed: bool) -> None:
    """Turn a folder into a repository with these commits; `is_committed` commits what else lies in it.

    Author and time are fixed: the same case has the same history everywhere. Raises `UsageError`.
    """
    _make(workspace, "init", "--quiet", "--initial-branch=main")
    for commit in commits:
        write_files(workspace, commit.files)
        _commit(workspace, commit)
    if is_committed:
        _commit(workspace, Commit(message="Begin"))


def write_files(workspace: Path, files: Mapping[str, str]) -> None:
    """Raises `UsageError` for a path that leads out of the workspace."""
    for path, text in files.items():
        parts = PurePosixPath(path)
        if parts.is_absolute() or not parts.parts or not {"..", ".git"}.isdisjoint(map(str.lower, parts.parts)):
            raise UsageError(f"Path {path!r} does not lie in the workspace of the case", hint="Write a relative path")
        (workspace / parts).parent.mkdir(parents=True, exist_ok=True)
        (workspace / parts).write_text(text, "utf-8")


def _commit(workspace: Path, commit: Commit) -> None:
    _make(workspace, "add", "--all")
    _make(workspace, "commit", "--quiet", "--allow-empty", "--no-verify", "-m", commit.message)
    if commit.tag:
        _make(workspace, "tag", commit.tag)


def _make(workspace: Path, *args: str) -> None:
    done = _run(workspace, *args)
    if done is None:
        raise UsageError("A case needs git, and it is not installed", hint="Install git")
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UsageError(f"`git {args[0]}` failed while a case was set up: {said}")


def _git(folder: Path, *args: str) -> bytes:
    done = _run(folder, *args)
    return done.stdout if done is not None and done.returncode == 0 else b""


def _run(folder: Path, *args: str) -> subprocess.CompletedProcess[bytes] | None:
    program = find_trusted_program("git", os.environ, writable=(folder,))
    if not program:
        return None
    identity = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _IDENTITY.items()}
    environment = {
        **build_trusted_environment(os.environ, writable=(folder,)),
        **identity,
        "HOME": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    words = [program, *_SETTINGS, *args]
    try:
        return subprocess.run(
            words,
            cwd=folder,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
