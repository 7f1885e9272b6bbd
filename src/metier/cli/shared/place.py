"""The folder that a command was called in, opened with the settings that hold in it."""

import os
from collections.abc import Mapping
from pathlib import Path

from metier.cli.shared.context import current_directory, home_folder
from metier.cli.shared.output import warn_line
from metier.errors import UsageError
from metier.providers.options import ModelOptions
from metier.runtime.host import Host
from metier.runtime.opening import open_host
from metier.settings.load import LoadedSettings


def open_place(config: Path | None, flags: Mapping[str, str] | None = None, *, is_new_run: bool = False) -> Host:
    """This folder, with the settings that hold in it. What they warn about is said."""
    opened = open_host(current_directory(), environ=os.environ, home=home_folder(), flags=flags, config=config)
    if is_new_run:
        _check_model(opened.loaded)
    for problem in opened.warnings:
        warn_line(problem.render())
    return opened.host


def _check_model(loaded: LoadedSettings) -> None:
    """The default model belongs to the default provider: another one must be told which model it shall use.

    An agent may have one of its own; where it has none, the provider is asked whether it is its own.
    """
    provider = loaded.settings.model.provider
    is_default = loaded.origins["model.name"].kind == "default"
    if is_default and not loaded.settings.runtime.agent and provider not in (ModelOptions().provider, "offline"):
        raise UsageError(
            f"No model is named for provider {provider!r}",
            hint="Add --model NAME, or set model.name in agent.yaml",
        )
