"""Callable skills and the state of their conversations, with the settings of a workspace."""

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from metier.capabilities import executor
from metier.capabilities.adapter import AgentAdapter
from metier.capabilities.advisor import Advisor
from metier.capabilities.executor import SkillExecutor
from metier.capabilities.skill_delegation import DelegationRouter
from metier.errors import UsageError
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.host import Host
from metier.runtime.opened_host import open_host
from metier.store import state_store
from metier.store.state_store import StateOptions, StateStore, open_state_store
from metier.store.summaries import Summarizer


def create_executor(
    repo_root: Path | str = ".",
    *,
    advisor: Advisor | None = None,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    skills_dirs: Sequence[Path] = (),
) -> SkillExecutor:
    """Create an executor for the skills of a workspace, of its user, and of Metier; see `SkillExecutor.execute`.

    Uses `skills.dir` and `logging.jsonl_dir` of `agent.yaml`. Raises `ConfigError` with all of its problems, and
    `UsageError` for an advisor without `async def ask(prompt, schema)`.
    """
    # At once: otherwise the first skill that asks would fail in the middle of its work.
    _check_method("advisor", advisor, "ask(prompt, schema)")
    host = _open(repo_root, environ, home)
    own = host.workspace / host.settings.skills.dir
    directories = skills_dirs or ((own,) if own.is_dir() else ())
    made = executor.create_executor(
        host.workspace, advisor=advisor, environ=host.environ, home=host.home, skills_dirs=directories
    )
    return replace(made, artifacts=host.runs / "artifacts")


def create_agent_adapter(
    called: SkillExecutor, *, routes: bool = False, router: DelegationRouter | None = None
) -> AgentAdapter:
    """Create an adapter for conversations with an executor's skills, in the store of the workspace's `agent.yaml`.

    `routes` lets skills delegate to each other. Without it and without a router, a skill that delegates is blocked.
    """
    if not isinstance(called, SkillExecutor):  # pyright: ignore[reportUnnecessaryIsInstance]  callers may not check types
        raise UsageError(f"{called!r} is no executor", hint='Write create_agent_adapter(create_executor("."))')
    _check_method("router", router, "delegate(request)")
    options = build_state_options(_open(called.workspace, called.environ, None))
    options.runs.mkdir(parents=True, exist_ok=True)
    return AgentAdapter(executor=called, options=options, routes=routes, router=router)


def create_state_store(
    context_id: str, *, repo_root: Path | str = ".", summarize: Summarizer | None = None
) -> StateStore:
    """Open the state of one conversation, in the store of the workspace's `agent.yaml`. Close it, or use `with`.

    `summarize` writes summaries of long conversations; without it, the conversation's own words are used.
    """
    if summarize is not None and not callable(summarize):
        raise UsageError(f"summarize must be a function, not {summarize!r}", hint="Write def short(summary, events): …")
    options = build_state_options(_open(repo_root, None, None))
    return open_state_store(context_id, replace(options, summarize=summarize) if summarize else options)


def generate_resume_token(context_id: str, version: int, turn: int, *, repo_root: Path | str = ".") -> str:
    """Create a resume token for a state that the caller has; `validate_resume_token` redeems it.

    `StateStore.generate_resume_token` reads the state itself.
    """
    return state_store.generate_resume_token(
        context_id, version, turn, options=build_state_options(_open(repo_root, None, None))
    )


def build_state_options(host: Host) -> StateOptions:
    """Build the store options of a workspace's conversations, with the secrets to redact in them."""
    return StateOptions(
        runs=host.runs,
        store=host.settings.store,
        environ=host.environ,
        clock=host.clock,
        redactor=build_host_redactor(host),
    )


def _check_method(argument: str, given: object, form: str) -> None:
    name = form.partition("(")[0]
    if given is None or (not isinstance(given, type) and inspect.iscoroutinefunction(getattr(given, name, None))):
        return
    raise UsageError(f"The {argument} needs a method `async def {form}`, and {given!r} has none", hint="Give an object")


def _open(folder: Path | str, environ: Mapping[str, str] | None, home: Path | None) -> Host:
    variables = os.environ if environ is None else environ
    if not isinstance(folder, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]  callers may not check types
        raise UsageError(f"repo_root must be a path, not {folder!r}", hint='Write repo_root="."')
    return open_host(Path(folder).resolve(), environ=variables, home=home or Path.home(), config=None).host
