"""What an eval compares: with and without the skill, or the thing itself against a commit, a model or another agent."""

from pathlib import Path

from metier.definitions.agent import FILE_NAME as AGENT_FILE
from metier.definitions.names import fold_id
from metier.errors import UsageError
from metier.evals.bench import Variant, get_commit, write_tree
from metier.evals.targets import Target
from metier.runtime.workspace.listed import list_definitions

WITH, WITHOUT = "with_skill", "without_skill"
_KINDS = ("commit", "model", "agent")


def build_variants(target: Target, against: str, *, folder: Path) -> tuple[Variant, ...]:
    """The thing itself first. `folder` gets the files of another commit. Raises `UsageError`."""
    if not against:
        if target.kind != "skill":
            return (Variant(name="now"),)
        return (Variant(name=WITH), Variant(name=WITHOUT, with_skill=False))
    kind, name = _read(target, against)
    match kind:
        case "model":
            provider, _, model = name.rpartition(":")
            return (Variant(name="now"), Variant(name=against, provider=provider, model=model))
        case "agent":
            return (Variant(name="now"), Variant(name=against, agent=name))
        case _:
            return (Variant(name="now"), _check_out(target, name, folder=folder))


def _read(target: Target, against: str) -> tuple[str, str]:
    """`model:NAME`, `agent:ID`, `commit:REF`; without a kind an agent of the workspace, else a commit."""
    kind, _, name = against.partition(":")
    if kind not in _KINDS or not name:
        kind, name = ("agent" if _is_agent(target, against) else "commit"), against
    if kind == "agent" and target.kind != "agent":
        raise UsageError(f"A {target.kind} is not compared with an agent", hint="Write commit:REF or model:NAME")
    if kind == "agent" and not _is_agent(target, name):
        raise UsageError(f"No agent is called {name!r}", hint="`agent agents list` names them")
    return kind, name


def _is_agent(target: Target, name: str) -> bool:
    return fold_id(name) in list_definitions(target.host.workspace, "agents", AGENT_FILE)


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
