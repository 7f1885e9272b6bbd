"""Open the workspace of a command with its settings."""

import os
from collections.abc import Mapping
from pathlib import Path

from metier.cli.shared.context import current_directory, current_workspace, home_folder, resolve_given
from metier.cli.shared.output import warn_line
from metier.errors import UsageError
from metier.providers.model_names import DEFAULT_MODELS
from metier.providers.options import BASE_URL_VARIABLES, OFFLINE
from metier.runtime import opened_host
from metier.runtime.host import Host
from metier.settings.resolution import LoadedSettings


def open_host(config: Path | None, flags: Mapping[str, str] | None = None, *, is_new_run: bool = False) -> Host:
    """Open the current workspace with its settings, and print warnings about them."""
    given, config = resolve_given(flags or {}, config)
    opened = opened_host.open_host(
        current_workspace(), environ=os.environ, home=home_folder(), flags=given, config=config
    )
    if is_new_run:
        _check_model(opened.loaded)
    for problem in opened.warnings:
        warn_line(problem.render())
    return opened.host


def open_run_host(config: Path | None, flags: Mapping[str, str] | None = None, *, is_new_run: bool) -> Host:
    """Like `open_host`, for a command that starts runs.

    Prints the workspace if it is a parent of the current folder, because the run works in all of it.
    """
    host = open_host(config, flags, is_new_run=is_new_run)
    if host.workspace != current_directory():
        warn_line(f"Workspace: {host.workspace}")
    return host


def _check_model(loaded: LoadedSettings) -> None:
    """Raise `UsageError` if the provider has no default model and none is configured."""
    if needs_model(loaded):
        raise UsageError(
            f"No model set for provider {loaded.settings.model.provider!r}",
            hint="Add --model NAME, or set model.name in agent.yaml",
        )


def needs_model(loaded: LoadedSettings) -> bool:
    """Return True if the provider has no default model and none is configured.

    Only the vendors have a default model. A default agent may name a model of its own.
    """
    options = loaded.settings.model
    provider = options.provider
    if loaded.origins["model.name"].kind != "default" or loaded.settings.runtime.agent or provider == OFFLINE:
        return False
    # Servers with OpenAI's format usually have their own models. Gateways for other formats serve the vendor's.
    address = options.providers.openai.base_url or os.environ.get(BASE_URL_VARIABLES["openai"])
    is_elsewhere = provider == "openai" and bool(address)
    return is_elsewhere or provider not in DEFAULT_MODELS
