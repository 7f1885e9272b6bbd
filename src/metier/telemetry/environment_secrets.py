"""The secrets of an environment, by the names of its variables.

A run, a server or a conversation needs those of its host too: `runtime.cleaning` has both. A contract keeps every other
room from finding the secrets of a host by itself.
"""

import os
from collections.abc import Mapping

from metier.telemetry.names import is_secret_name


def list_secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose names say that they are secret: `*_API_KEY`, `*_TOKEN`, `*_PASSWORD`, ….

    A path to a file names the location of a secret and is no secret itself. Only an existing path counts as one: base64
    can start with `/` too.
    """
    return tuple(value for name, value in environment.items() if is_secret_name(name) and not _is_existing_path(value))


def _is_existing_path(value: str) -> bool:
    # Not pathlib, which raises for a name that is too long.
    return value.startswith(("/", "~/", "./")) and os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111
