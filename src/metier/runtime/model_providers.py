"""The model providers of a run: the configured one and its fallbacks, checked before the run starts."""

from collections.abc import Callable, Collection

from msgspec import Struct

from metier.definitions.names import PLUGIN
from metier.definitions.nearest import hint_nearest
from metier.definitions.references import INHERIT
from metier.engine.execution.past_results import FILE_NAME as RESULTS
from metier.engine.skill_index import SkillIndex
from metier.errors import UsageError
from metier.providers.base import Provider
from metier.providers.connection import Connection
from metier.providers.facts import FactBook, load_facts
from metier.providers.failures import MissingKey
from metier.providers.model_names import parse_model_name
from metier.providers.offline.plan import PlaceholderValues
from metier.providers.offline.progress import read_task
from metier.providers.offline.provider import build_offline
from metier.providers.options import OFFLINE, ModelOptions, RemoteAgentOptions, find_key_variable, read_agents
from metier.providers.registry import BUILT_IN, REMOTE, choose_provider, get_key, open_provider
from metier.providers.retry import Candidate
from metier.providers.stand_ins import AllowedProvider, DryRunProvider, UnavailableProvider
from metier.runtime.host import Host
from metier.runtime.workspace.agents import get_agent_model
from metier.runtime.workspace.plugins import get_plugin_part
from metier.runtime.workspace.prepared_run import PreparedRun

RANKED = 8
"""Number of skills that the offline provider considers for each part of a request."""


def open_remote(host: Host, *, run: PreparedRun) -> Provider:
    """Open the remote agent of the settings. Raises `UsageError` if it isn't configured, `MissingKey`."""
    # Imported here, because its HTTP client takes long to import and few hosts have a remote agent.
    from metier.providers.a2a import RemoteAgent, RemoteAgentProvider

    options, token = _get_remote(host, name := host.settings.model.name)
    agent = RemoteAgent(name=name, url=options.url, token=token, timeout_seconds=options.timeout_seconds)
    return RemoteAgentProvider(agent, run_id=run.folder.name, read_task=read_task)


def _get_remote(host: Host, name: str) -> tuple[RemoteAgentOptions, str]:
    """Return the options and the token of a remote agent. Raises `UsageError`, `MissingKey`."""
    known = read_agents(host.settings.model.providers.a2a.agents)
    options = known.get(name)
    if options is None:
        hint = hint_nearest(name, list(known)) or "Name it in model.providers.a2a.agents of your settings"
        raise UsageError(f"There is no remote agent {name!r}", hint=hint)
    token = host.environ.get(options.token_env, "").strip() if options.token_env else ""
    if options.token_env and not token:
        raise MissingKey(f"Remote agent {name!r} has no token", hint=f"Set {options.token_env} in the environment")
    return options, token


class Models(Struct, frozen=True):
    provider: Provider
    fallbacks: tuple[Candidate, ...] = ()

    async def aclose(self) -> None:
        # By identity, because fallbacks of the same vendor share a provider, which must be closed once.
        for provider in {id(p): p for p in (self.provider, *(c.provider for c in self.fallbacks))}.values():
            await provider.close()


def load_host_facts(host: Host) -> FactBook:
    """Load the facts of all models, those of the user's own file first."""
    named = host.settings.model.facts_file
    return load_facts(host.workspace / named if named else None)


def check_keys(run: PreparedRun) -> None:
    """Raise `MissingKey` if a provider of the run or of a step of its task has no key."""
    host, order = run.host or run.agent.host, run.order
    if order is None or not (order.task_id or order.call):
        _check_key(host, run.agent.model)
    elif run.task is not None:
        for name in dict.fromkeys(step.agent or order.agent for step in run.task.steps):
            _check_key(host, get_agent_model(host, name, model=order.model))


def _check_key(host: Host, options: ModelOptions) -> None:
    if host.provider is not None:
        return
    try:
        if options.provider == REMOTE:
            _get_remote(host, options.name)
        elif options.provider in BUILT_IN:
            choice = choose_provider(options)
            # A server at another address may serve any model under any name.
            if not choice.base_url:
                check_owner(options.name, choice.name, load_host_facts(host))
            get_key(choice, host.environ)
    except MissingKey as missing:
        raise _add_alternatives(missing, host) from missing


def _add_alternatives(missing: MissingKey, host: Host) -> MissingKey:
    others = [name for name in BUILT_IN if _has_key(name, host)]
    flags = " or ".join(f"--provider {name}" for name in (*others, OFFLINE))
    return MissingKey(missing.message, hint=f"{missing.hint}, use {flags}, or run `agent` to choose a provider")


def _has_key(name: str, host: Host) -> bool:
    configured = choose_provider(host.settings.model, name).key_variable
    return find_key_variable(BUILT_IN[name].keys, host.environ, configured=configured) is not None


def open_models(host: Host, facts: FactBook, skill_index: SkillIndex, *, run: PreparedRun) -> Models:
    """Open the provider and its fallbacks. Raises `UsageError`.

    A provider without a key is opened as `UnavailableProvider`, so that a resumed run can record the failure.
    """
    options = host.settings.model
    if run.is_plan_only:
        return Models(DryRunProvider(options.provider))
    if host.provider is not None:
        return guard(Models(host.provider), options.allowed_models)
    if options.provider == OFFLINE:
        return Models(_open_offline(host, skill_index, run))
    if options.provider.startswith(PLUGIN):
        build = get_plugin_part(
            options.provider, [each.providers for each in host.plugins], kind="provider", failure=UsageError
        )
        return guard(Models(build(Connection(facts=facts))), options.allowed_models)
    if options.provider == REMOTE:
        try:
            return guard(Models(open_remote(host, run=run)), options.allowed_models)
        except MissingKey as missing:
            return Models(UnavailableProvider(REMOTE, missing))
    choice = choose_provider(options)
    if not choice.base_url:
        check_owner(options.name, choice.name, facts)
    try:
        provider = open_provider(choice, facts, environment=host.environ)
    except MissingKey as missing:
        return Models(UnavailableProvider(choice.name, _add_alternatives(missing, host)))
    return guard(Models(provider, _open_fallbacks(host, facts, provider)), options.allowed_models)


def guard(models: Models, allowed: Collection[str]) -> Models:
    """Check the model of every call against the allowlist."""
    if not allowed:
        return models
    # In the provider and not before the call, so that summaries and other callers can't bypass the list.
    fallbacks = [Candidate(AllowedProvider(each.provider, allowed), each.model) for each in models.fallbacks]
    return Models(AllowedProvider(models.provider, allowed), tuple(fallbacks))


def check_owner(model: str, provider: str, facts: FactBook) -> None:
    """Raise `UsageError` if the model is known to belong to another provider."""
    owners = [name for name in facts.entries if facts.knows(name, model)]
    if owners and provider not in owners:
        priced = [pattern.rstrip("*") for pattern, known in facts.entries.get(provider, {}).items() if known.prices]
        example = next(iter(priced), "")
        hint = "Set model.name (--model, AGENT_MODEL_NAME)" + (f", for example to {example!r}" if example else "")
        raise UsageError(f"Model {model!r} is one of {owners[0]!r}, not of {provider!r}", hint=hint)


def _open_fallbacks(host: Host, facts: FactBook, primary: Provider) -> tuple[Candidate, ...]:
    opened: dict[str, Provider] = {primary.name: primary}
    candidates: list[Candidate] = []
    for name in host.settings.model.fallback_models:
        provider_name, model = parse_model_name(name, provider=primary.name)
        if provider_name not in opened and provider_name not in BUILT_IN:
            raise UsageError(
                f"Fallback model {name!r} cannot be used", hint=f"Fallbacks are models of {', '.join(BUILT_IN)}"
            )
        if provider_name not in opened:
            choice = choose_provider(host.settings.model, provider_name)
            try:
                opened[provider_name] = open_provider(choice, facts, environment=host.environ)
            except MissingKey as missing:
                raise UsageError(
                    f"Fallback model {name!r} cannot be used: {missing.message}", hint=missing.hint
                ) from missing
        candidates.append(Candidate(opened[provider_name], model))
    return tuple(candidates)


def _open_offline(host: Host, skill_index: SkillIndex, run: PreparedRun) -> Provider:
    run_folder = run.folder
    named = next((step.skills for step in reversed(run.steps) if step.skills is not None), None)
    is_chosen = named is not None and INHERIT not in named
    placeholders = PlaceholderValues(
        workspace=str(host.workspace),
        artifacts=str(run_folder / "artifacts"),
        previous=str(run_folder / RESULTS),
        has_earlier_results=bool(run.given_results),
    )
    packages = tuple(skill_index.packages.values())
    return build_offline(
        packages,
        _rank(skill_index),
        placeholders=placeholders,
        # The author of the step chose the skills, so a low score must not exclude one.
        min_score=0 if is_chosen else host.settings.skills.prefilter_min_score,
        max_turns=run.max_turns or (run.order.limits if run.order else host.settings.runtime).max_turns,
        only=packages[0].definition.name if is_chosen and len(packages) == 1 else "",
    )


def _rank(skill_index: SkillIndex) -> Callable[[str], list[tuple[str, float]]]:
    def rank(request: str) -> list[tuple[str, float]]:
        return [(hit.skill_name, hit.score) for hit in skill_index.index.rank(request, RANKED)]

    return rank
