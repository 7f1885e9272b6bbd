"""Available model providers, a test call, and the settings file for them. For `agent init` and the first-run dialog.

It looks for keys in the environment and for servers on this machine, and writes nothing.
"""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import anyio
from msgspec import Struct
from msgspec.structs import replace

from metier.errors import MetierError
from metier.messages import Message, TextPart
from metier.providers.base import ListsModels, ModelRequest
from metier.providers.facts import load_facts
from metier.providers.failures import BadRequest, NotFound, ReplyBroken
from metier.providers.model_names import DEFAULT_MODELS
from metier.providers.options import OFFLINE, ProviderName
from metier.providers.registry import BUILT_IN, ProviderChoice, open_provider
from metier.settings.setting_values import render_value
from metier.telemetry.amounts import format_count

type Readiness = Literal["key", "server", "offline", "no_key"]

LABELS: Mapping[str, str] = {"anthropic": "Anthropic", "gemini": "Gemini", "openai": "OpenAI", OFFLINE: "Offline"}
LOCAL_SERVERS: Mapping[str, int] = {"Ollama": 11434, "LM Studio": 1234, "llama.cpp": 8080, "vLLM": 8000}
PROBE_SECONDS = 1.0
CHECK_SECONDS = 20.0
"""Timeout of the call that checks a key."""
MAX_TURNS, STEP_SECONDS, CALL_SECONDS, MAX_REPLY_TOKENS = 50, 3600, 600, 16_000
"""Limits for real work; the built-in defaults stay those of a bare `agent run`."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A provider that may be available."""

    provider: ProviderName
    label: str
    readiness: Readiness
    detail: str
    """Reason for its readiness: the variable that is set, the address that answers, or what is missing."""
    base_url: str = ""
    models: tuple[str, ...] = ()
    """Models that the server listed; empty if it wasn't asked or can't list them."""


class ModelChoice(Struct, frozen=True, kw_only=True):
    """The user's choice, for which a settings file is rendered."""

    provider: ProviderName
    model: str = ""
    base_url: str = ""
    profile: Literal["permissive", "guarded", "strict"] | None = "guarded"
    """Profile to write; None to leave it to the agent's own profile and rules, which settings can only narrow."""
    agent: str = ""


async def list_candidates(environ: Mapping[str, str]) -> tuple[Candidate, ...]:
    """List providers with a key, then local servers that answer, then the others, and the offline provider last."""
    vendors = [_describe_vendor(name, environ) for name in BUILT_IN]
    servers = await _list_servers(environ)
    ready = [each for each in vendors if each.readiness == "key"]
    others = [each for each in vendors if each.readiness == "no_key"]
    offline = Candidate(
        provider="offline", label=LABELS[OFFLINE], readiness="offline", detail="no model: skills with scripts only"
    )
    return (*ready, *servers, *others, offline)


async def check_candidate(
    candidate: Candidate, environ: Mapping[str, str], *, seconds: float = CHECK_SECONDS
) -> tuple[str, ...]:
    """Make one cheap call with the key: list the models, or request one token if they can't be listed.

    Return the names of the models, none if the server doesn't list them. Raises `ProviderError`.
    """
    if candidate.provider == OFFLINE:
        return ()
    choice = ProviderChoice(name=candidate.provider, base_url=candidate.base_url)
    provider = open_provider(choice, load_facts(), environment=environ)
    try:
        return await provider.list_models(seconds=seconds) if isinstance(provider, ListsModels) else ()
    # The server cannot list models. A refused key raises another error.
    except (NotFound, BadRequest, ReplyBroken):
        # A server at another address need not have the vendor's models.
        if not (model := DEFAULT_MODELS.get(candidate.provider, "")) or candidate.base_url:
            raise
        await provider.reply(_build_smallest_request(model))
        return ()
    finally:
        await provider.close()


def propose_model(candidate: Candidate, models: tuple[str, ...]) -> str:
    """Return the vendor's default model if it is listed, otherwise the first of the list."""
    usual = "" if candidate.base_url else DEFAULT_MODELS.get(candidate.provider, "")
    return usual if usual and (not models or usual in models) else next(iter(models), usual)


def find_ready(candidates: tuple[Candidate, ...], readiness: Readiness) -> Candidate | None:
    """Return the first candidate that has a key, or the first local server that answers."""
    return next((each for each in candidates if each.readiness == readiness), None)


def render_settings(choice: ModelChoice) -> str:
    """Render an `agent.yaml` with limits for real work."""
    known = load_facts().get(choice.provider, choice.model)
    lines = [
        "# Settings of `agent`. `agent config show --origin` lists all settings with their defaults;",
        "# `agent config set KEY VALUE` changes one. Keys are never saved here; set them in the environment.",
        "model:",
        f"  provider: {choice.provider}",
    ]
    if choice.model:
        lines.append(f"  name: {render_value(choice.model)}")
    if choice.provider != OFFLINE:
        lines += _render_limits(known.window_tokens, known.max_output_tokens)
    if choice.base_url:
        lines += ["  providers:", f"    {choice.provider}:", f"      base_url: {render_value(choice.base_url)}"]
    lines.append("runtime:")
    if choice.agent:
        lines.append(f"  agent: {render_value(choice.agent)}")
    if choice.profile:
        lines += [
            "  # If no rule applies: permissive allows, guarded asks, strict asks and requires a sandbox.",
            f"  profile: {choice.profile}",
        ]
    lines += [
        f"  max_turns: {MAX_TURNS}",
        f"  timeout_seconds: {STEP_SECONDS}  # of one step",
    ]
    return "\n".join([*lines, "shell:", f"  timeout_ms: {CALL_SECONDS * 1000}", ""])


def _render_limits(window: int | None, output: int | None) -> list[str]:
    lines = [f"  max_tokens: {min(output or MAX_REPLY_TOKENS, MAX_REPLY_TOKENS)}  # of one reply"]
    if window is not None:
        lines.insert(0, f"  max_context_tokens: {window}  # the model's own window")
    return [*lines, f"  timeout_seconds: {CALL_SECONDS}  # of one request to the model"]


def _describe_vendor(name: str, environ: Mapping[str, str]) -> Candidate:
    registration = BUILT_IN[name]
    found = next((key for key in registration.keys if environ.get(key, "").strip()), "")
    candidate = Candidate(
        provider=_as_provider(name),
        label=LABELS[name],
        readiness="key" if found else "no_key",
        detail=f"{found} is set" if found else f"needs {registration.keys[0]}",
    )
    address = environ.get(registration.base_url_variable, "").strip()
    if not address:
        return candidate
    detail = f"{registration.base_url_variable} is set to {_shorten(address)}"
    is_open = registration.key_is_optional_elsewhere
    return replace(candidate, detail=detail, readiness="key" if found or is_open else "no_key", base_url=address)


def _as_provider(name: str) -> ProviderName:
    match name:
        case "anthropic" | "gemini" | "openai":
            return name
        case _:
            raise AssertionError(f"{name!r} is no provider with a key")


async def _list_servers(environ: Mapping[str, str]) -> list[Candidate]:
    """Check the usual ports concurrently. A server is listed if it answers with a list of models."""
    addresses = {label: f"http://127.0.0.1:{port}/v1" for label, port in LOCAL_SERVERS.items()}
    if own := environ.get("OLLAMA_HOST", "").strip():
        addresses["Ollama"] = _build_ollama_address(own)
    found: dict[str, Candidate] = {}

    async def probe(label: str, address: str) -> None:
        server = Candidate(provider="openai", label=label, readiness="server", detail="", base_url=address)
        try:
            # Without the environment: an unknown program that listens on the port must not get a key.
            models = await check_candidate(server, {}, seconds=PROBE_SECONDS)
        except MetierError:
            return  # the port is closed, or another program uses it
        if models:
            detail = f"{_shorten(address)} answers, {format_count(len(models), 'model')}"
            found[label] = replace(server, detail=detail, models=models)

    async with anyio.create_task_group() as group:
        for label, address in addresses.items():
            group.start_soon(probe, label, address)
    return [found[label] for label in addresses if label in found]


def _build_ollama_address(host: str) -> str:
    """Parse `OLLAMA_HOST` like Ollama: an address, a host, or a host and a port."""
    with_scheme = host if "://" in host else f"http://{host}"
    try:
        parts = urlsplit(with_scheme)
        port = parts.port or LOCAL_SERVERS["Ollama"]
    except ValueError:
        return f"http://127.0.0.1:{LOCAL_SERVERS['Ollama']}/v1"
    # `OLLAMA_HOST` is also the address that the server listens on, and a client can't connect to 0.0.0.0.
    name = "127.0.0.1" if parts.hostname in ("0.0.0.0", "", None) else parts.hostname  # noqa: S104
    return f"{parts.scheme}://{f'[{name}]' if ':' in name else name}:{port}/v1"


def _build_smallest_request(model: str) -> ModelRequest:
    message = Message(role="user", parts=(TextPart(text="Hi"),))
    # Not fewer tokens: OpenAI's Responses API rejects a limit below 16.
    return ModelRequest(model=model, messages=(message,), max_tokens=16, timeout_seconds=CHECK_SECONDS)


def _shorten(address: str) -> str:
    parts = urlsplit(address)
    # The part before the @ may have a password.
    return parts.netloc.rpartition("@")[2] or address
