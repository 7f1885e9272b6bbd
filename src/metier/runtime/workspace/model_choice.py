"""The model of a run and its allowed models: the host's settings, narrowed by its agent. Pure."""

from metier.definitions.agent import AgentDefinition
from metier.definitions.names import PROFILES, Profile
from metier.definitions.nearest import hint_nearest
from metier.errors import UsageError
from metier.providers.model_names import ModelName, check_fallbacks, is_allowed, parse_model_name
from metier.providers.options import OFFLINE, ModelOptions


def choose_model(options: ModelOptions, agent: AgentDefinition | None, *, wanted: str = "") -> ModelOptions:
    """Return the options for a run of this agent; `wanted` is the requested model.

    Raises `UsageError` for a model that the agent or the host does not allow. The offline backbone has no models: only
    a caller who names another provider gets past it.
    """
    name = wanted or (agent.model if agent and agent.model else "")
    chosen = _parse(name, options) if name else ModelName(options.provider, options.name)
    if options.provider == OFFLINE and (not wanted or chosen.provider == OFFLINE):
        return options
    check_fallbacks(options.fallback_models, options.allowed_models, provider=options.provider)
    own = list_models(options, agent)
    _check(chosen, name or options.name, options=options, agent=agent)
    return options.model_copy(
        update={
            "provider": chosen.provider,
            "name": chosen.model,
            "allowed_models": _narrow(own, options),
            "fallback_models": _list_fallbacks(own, chosen, options),
            "temperature": agent.temperature if agent and agent.temperature is not None else options.temperature,
            "max_tokens": agent.max_tokens if agent and agent.max_tokens is not None else options.max_tokens,
        }
    )


def list_models(options: ModelOptions, agent: AgentDefinition | None) -> tuple[str, ...]:
    """List the models that may be chosen for an agent, its own first; empty if unspecified."""
    if agent is None or not (agent.model or agent.allowed_models):
        return ()
    return tuple(dict.fromkeys((agent.model or options.name, *agent.allowed_models)))


def choose_profile(host: Profile, agent: AgentDefinition | None) -> Profile:
    """Return the stricter profile: an agent only narrows what the host allows. One in Markdown is at least
    `guarded`.
    """
    if agent is None:
        return host
    own = agent.profile or "guarded"
    return own if PROFILES.index(own) > PROFILES.index(host) else host


def _check(chosen: ModelName, name: str, *, options: ModelOptions, agent: AgentDefinition | None) -> None:
    own = list_models(options, agent)
    if agent is not None and not is_allowed(chosen, own):
        hint = hint_nearest(name, own) or f"Use {_join(own)}"
        raise UsageError(f"Model {name!r} is not one that agent {agent.id!r} may use", hint=hint)
    if not is_allowed(chosen, options.allowed_models):
        near = hint_nearest(name, options.allowed_models)
        hint = near or f"model.allowed_models has {_join(options.allowed_models)}"
        raise UsageError(f"Model {name!r} is not allowed here", hint=hint)


def _parse(name: str, options: ModelOptions) -> ModelName:
    return parse_model_name(name, provider=options.provider)


def _narrow(own: tuple[str, ...], options: ModelOptions) -> tuple[str, ...]:
    if not own or not options.allowed_models:
        return own or options.allowed_models
    return tuple(name for name in own if is_allowed(_parse(name, options), options.allowed_models))


def _list_fallbacks(own: tuple[str, ...], chosen: ModelName, options: ModelOptions) -> tuple[str, ...]:
    """List the fallbacks that the agent allows too; a plain name keeps its original provider."""
    allowed: list[str] = []
    for name in options.fallback_models:
        model = _parse(name, options)
        if model.provider != OFFLINE and is_allowed(model, own):
            allowed.append(name if model.provider == chosen.provider else str(model))
    return tuple(allowed)


def _join(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if names[1:] else "".join(names)
