"""The folder of a case's run, with its workspace, skill and host, and the variants that an eval compares.

<root>/workspace     files of the case, and the definitions if an agent or a task is evaluated
<root>/skills/NAME   the evaluated skill
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from metier.definitions.names import fold_id
from metier.definitions.skills.sources import get_bundled_folder
from metier.errors import UsageError
from metier.evals.cases import Commit, EvalCase
from metier.evals.eval_files import find_case_file
from metier.evals.evidence import Content, as_content
from metier.evals.targets import SKIPPED_FOLDERS, SourcedCase, Target, read_within
from metier.ids import Ids
from metier.programs.launcher import GIT, find_program, run_program
from metier.runtime.host import Host
from metier.runtime.workspace.lookup import list_definitions
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.backend import StoreOptions

_TIMEOUT_SECONDS = 60
_PLAIN = {b"100644": 0o644, b"100755": 0o755}
_IDENTITY = {"NAME": "Eval", "EMAIL": "eval@example.org", "DATE": "2026-01-01T00:00:00+00:00"}
# The folder may belong to another user, as in containers.
_SETTINGS = (
    *("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "commit.gpgsign=false"),
    *("-c", "safe.directory=*"),
)

WORKSPACE, SKILLS, RUNS = "workspace", "skills", "runs"
WITH, WITHOUT = "with_skill", "without_skill"
_VARIANT_KINDS = ("commit", "model", "agent")
SHOWN_ROOT = "/eval"
"""Name of the root in recordings, the same on every machine."""


def get_commit(folder: Path, ref: str = "HEAD") -> str:
    """Return the full ID of a commit, or an empty string if there is no such commit or no repository."""
    # Git would take it for an option.
    if ref.startswith("-"):
        return ""
    # `^{commit}` resolves a tag to its commit, and rejects the ID of a file.
    return _git(folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").decode().strip()


def write_tree(folder: Path, commit: str, into: Path) -> None:
    """Write the files of `folder` at a commit. Raises `UsageError` if there were none."""
    # Without `-z`, Git puts unusual names in quotes. At the top of a repository there is no prefix.
    listed = _git(folder, "ls-tree", "-r", "-z", "--full-tree", f"{commit}:{_get_prefix(folder)}".rstrip(":"))
    files = [line for line in listed.split(b"\0") if line]
    if not files:
        raise UsageError(f"Commit {commit[:12]} has no {folder.name!r}", hint="Use a commit that has it")
    for line in files:
        facts, _, name = line.partition(b"\t")
        mode, _, digest = facts.split()
        path = Path(name.decode("utf-8", "surrogateescape"))
        if mode not in _PLAIN or path.is_absolute() or ".." in path.parts:
            continue  # links and submodules are not part of a skill
        file = into / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_git(folder, "cat-file", "blob", digest.decode()))
        file.chmod(_PLAIN[mode])


def _get_prefix(folder: Path) -> str:
    return _git(folder, "rev-parse", "--show-prefix").decode().strip().rstrip("/")


def create_history(workspace: Path, commits: Sequence[Commit], *, is_committed: bool) -> None:
    """Create a repository with these commits in a folder. With `is_committed`, its other files are committed too.

    Author and time are fixed, so that a case has the same history everywhere. Raises `UsageError`.
    """
    _make(workspace, "init", "--quiet", "--initial-branch=main")
    for commit in commits:
        write_files(workspace, commit.files)
        _commit(workspace, commit)
    if is_committed:
        _commit(workspace, Commit(message="Begin"))


def write_files(workspace: Path, files: Mapping[str, str]) -> None:
    """Write files to the workspace. Raises `UsageError` for a path outside it."""
    for path, text in files.items():
        _write(workspace, path, text.encode())


def _commit(workspace: Path, commit: Commit) -> None:
    _make(workspace, "add", "--all")
    _make(workspace, "commit", "--quiet", "--allow-empty", "--no-verify", "-m", commit.message)
    if commit.tag:
        _make(workspace, "tag", commit.tag)


def _make(workspace: Path, *args: str) -> None:
    done = _run(workspace, *args)
    if done is None:
        raise UsageError("A case needs git, which is not installed", hint="Install git")
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UsageError(f"`git {args[0]}` failed while a case was set up: {said}")


def _git(folder: Path, *args: str) -> bytes:
    done = _run(folder, *args)
    return done.stdout if done is not None and done.returncode == 0 else b""


def _run(folder: Path, *args: str) -> subprocess.CompletedProcess[bytes] | None:
    program = find_program(GIT, "git", os.environ, writable=(folder,))
    if program is None:
        return None
    # Fixed identity and no user configuration, so that a case has the same commits everywhere.
    identity = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _IDENTITY.items()}
    variables = {
        **identity,
        "HOME": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    try:
        return run_program(
            program.with_variables(variables), *_SETTINGS, *args, folder=folder, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


class Variant(Struct, frozen=True, kw_only=True):
    """Conditions of a case's runs: those of the target itself, or of a baseline."""

    name: str
    with_skill: bool = True
    skill_folder: Path | None = None
    """Another version of the skill."""
    definitions: Path | None = None
    """Another version of the workspace's definitions."""
    provider: str = ""
    model: str = ""
    agent: str = ""


def build_bench(target: Target, sourced: SourcedCase | None, root: Path, *, variant: Variant) -> None:
    """Write the folders of a case. Raises `UsageError` for a missing file."""
    workspace = root / WORKSPACE
    workspace.mkdir(parents=True, exist_ok=True)
    _copy_target(target, root, variant)
    if sourced is None:
        return
    case = sourced.case
    setup = case.setup
    if setup.commits:
        create_history(workspace, setup.commits, is_committed=False)
    for path, data in list_given(sourced).items():
        _write(workspace, path, data)
    if case.policy:
        _write(workspace, ".agent/policy.yaml", _read_policy(sourced).encode())
    # With `commits` there is a repository already, to which only `commit` adds another commit.
    if setup.git and (not setup.commits or setup.git == "commit"):
        create_history(workspace, (), is_committed=setup.git == "commit")


def list_given(sourced: SourcedCase) -> dict[str, bytes]:
    """Return the files that the case adds to the workspace, by path."""
    case = sourced.case
    given: dict[str, bytes] = {}
    for name in case.files:
        found = find_case_file(sourced.folder, name)
        if found is None:
            raise UsageError(
                f"Case {case.id!r} lists {name!r}, but there is no such file", hint="Create the file, or fix the name"
            )
        source = sourced.folder / found
        inside = (path for path in source.rglob("*") if path.is_file() and not path.is_symlink())
        files = [source] if source.is_file() else sorted(inside)
        base = source.parent if source.is_file() else source
        given |= {file.relative_to(base).as_posix(): read_within(sourced.folder, file) for file in files}
    return given | {path: text.encode() for path, text in case.setup.files.items()}


def list_content(sourced: SourcedCase) -> dict[str, Content]:
    """Return the case's files and those of its history, for grading."""
    committed = {path: text.encode() for commit in sourced.case.setup.commits for path, text in commit.files.items()}
    return {path: as_content(data) for path, data in (committed | list_given(sourced)).items()}


def open_bench(target: Target, root: Path, *, variant: Variant, case: EvalCase | None, runs: Path) -> Host:
    """Return the host for these folders, with the user's settings except for machine-dependent ones."""
    host = target.host
    opened = replace(host, settings=_choose_settings(target, root, variant, case, runs), workspace=root / WORKSPACE)
    # The skill was checked before it was copied; definitions keep the trust state of their original folder.
    return replace(opened, trust=MADE_HERE) if target.package is not None or host.trust.is_trusted else opened


def list_moved(root: Path, runs: Path, host: Host) -> dict[str, str]:
    """Map folders of this machine to their names in recordings."""
    moved = {str(root): SHOWN_ROOT, str(root.resolve()): SHOWN_ROOT, str(runs): f"{SHOWN_ROOT}/runs"}
    moved[str(host.workspace)] = f"{SHOWN_ROOT}/project"
    moved[str(get_bundled_folder())] = f"{SHOWN_ROOT}/bundled"
    home = str(host.home)
    # A short home such as `/root` would also be replaced inside of other paths.
    return moved | ({home: f"{SHOWN_ROOT}/home"} if len(host.home.parts) > 2 else {})


def _choose_settings(  # noqa: PLR0917  one caller
    target: Target, root: Path, variant: Variant, case: EvalCase | None, runs: Path
) -> Settings:
    settings = target.host.settings
    runtime: dict[str, object] = {}
    skills: dict[str, object] = {}
    if target.package is not None:
        skills = {"dir": str(root / SKILLS), "enabled": "none"}
        runtime["agent"] = None
    elif not Path(settings.skills.dir).is_absolute():
        skills = {"dir": settings.skills.dir}
    if target.kind == "agent":
        runtime["agent"] = variant.agent or target.id
    if case is not None:
        runtime |= _limit(case, settings)
    model = {key: value for key, value in (("provider", variant.provider), ("name", variant.model)) if value}
    if settings.model.facts_file:
        # The path is relative to the user's workspace, not to the folder of the case.
        model["facts_file"] = str(target.host.workspace / settings.model.facts_file)
    return settings.model_copy(
        update={
            "model": settings.model.model_copy(update=model),
            "runtime": settings.runtime.model_copy(update=runtime),
            "skills": settings.skills.model_copy(update=skills),
            # The default store in the folder of the eval: its runs must not appear among the user's own.
            "store": StoreOptions(),
            "logging": settings.logging.model_copy(update={"jsonl_dir": str(runs), "shard": "off"}),
        }
    )


def _limit(case: EvalCase, settings: Settings) -> dict[str, object]:
    budget = case.budget
    limits: dict[str, object] = {"profile": case.profile} if case.profile else {}
    limits |= {"max_turns": budget.max_turns} if budget.max_turns is not None else {}
    if budget.max_cost_usd is not None:
        # A case can lower the user's limit, but not raise it.
        limits["max_cost_usd"] = min(budget.max_cost_usd, settings.runtime.max_cost_usd or budget.max_cost_usd)
    return limits


def _copy_target(target: Target, root: Path, variant: Variant) -> None:
    if target.package is not None:
        if variant.with_skill:
            source = variant.skill_folder or target.package.folder
            shutil.copytree(source, root / SKILLS / target.id, ignore=_leave_out, dirs_exist_ok=True)
        return
    source = variant.definitions or target.host.workspace
    chosen = replace(target, host=replace(target.host, workspace=source))
    for path, file in chosen.list_files().items():
        _write(root / WORKSPACE, path, chosen.read(file), mode=file.stat().st_mode)


def _leave_out(folder: str, names: list[str]) -> set[str]:
    # `copytree` would copy their targets, which may lie outside the skill.
    links = {name for name in names if (Path(folder) / name).is_symlink()}
    return links | SKIPPED_FOLDERS.intersection(names)


def _write(workspace: Path, path: str, data: bytes, *, mode: int = 0o644) -> None:
    parts = PurePosixPath(path)
    # A file in `.git` could be a hook, which Git would run. Some file systems ignore case, so `.GIT` is the same
    # folder.
    if parts.is_absolute() or not parts.parts or not {"..", ".git"}.isdisjoint(map(str.lower, parts.parts)):
        raise UsageError(f"Path {path!r} is outside the workspace of the case", hint="Use a relative path")
    file = workspace / parts
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    # Without setuid and the other special bits.
    file.chmod(mode & 0o777)


def _read_policy(sourced: SourcedCase) -> str:
    """Return the rules of a case, given as text or as the name of a file."""
    text = sourced.case.policy
    if "\n" in text or text.lstrip().startswith("{"):
        return text
    found = find_case_file(sourced.folder, text)
    if found is None:
        raise UsageError(
            f"The policy {text!r} of case {sourced.case.id!r} cannot be read", hint="Put the file next to the cases"
        )
    return read_within(sourced.folder, sourced.folder / found).decode("utf-8", "replace")


class FixedIds(Struct, frozen=True):
    """Gives the started run a fixed ID, and everything else new ones."""

    fixed: str
    ids: Ids

    def run_id(self, started: datetime) -> str:
        del started
        return self.fixed

    def trace_id(self) -> str:
        return self.ids.trace_id()

    def span_id(self) -> str:
        return self.ids.span_id()


def build_variants(target: Target, against: str, *, folder: Path) -> tuple[Variant, ...]:
    """Return the variants, starting with the target itself. Files of another commit are written to `folder`.

    Raises `UsageError`.
    """
    if not against:
        if target.kind != "skill":
            return (Variant(name="now"),)
        return (Variant(name=WITH), Variant(name=WITHOUT, with_skill=False))
    kind, name = _parse_against(target, against)
    match kind:
        case "model":
            provider, _, model = name.rpartition(":")
            return (Variant(name="now"), Variant(name=against, provider=provider, model=model))
        case "agent":
            return (Variant(name="now"), Variant(name=against, agent=name))
        case _:
            return (Variant(name="now"), _check_out(target, name, folder=folder))


def _parse_against(target: Target, against: str) -> tuple[str, str]:
    """Parse `model:NAME`, `agent:ID` or `commit:REF`. Other text is an agent or else a commit."""
    kind, _, name = against.partition(":")
    if kind not in _VARIANT_KINDS or not name:
        kind, name = ("agent" if _is_agent(target, against) else "commit"), against
    if kind == "agent" and target.kind != "agent":
        raise UsageError(f"A {target.kind} cannot be compared with an agent", hint="Write commit:REF or model:NAME")
    if kind == "agent" and not _is_agent(target, name):
        raise UsageError(f"Unknown agent {name!r}", hint="`agent agents list` lists agents")
    return kind, name


def _is_agent(target: Target, name: str) -> bool:
    return fold_id(name) in list_definitions(target.host.workspace, "agent")


def _check_out(target: Target, ref: str, *, folder: Path) -> Variant:
    source = target.package.folder if target.package is not None else target.host.workspace
    commit = get_commit(source, ref)
    if not commit:
        raise UsageError(
            f"{ref!r} is neither a commit of '{source}' nor an agent", hint="Write commit:REF, model:NAME or agent:ID"
        )
    into = folder / "against" / commit[:12]
    if not into.exists():
        write_tree(source, commit, into)
    name = f"commit:{commit[:12]}"
    if target.package is not None:
        return Variant(name=name, skill_folder=into)
    return Variant(name=name, definitions=into)
