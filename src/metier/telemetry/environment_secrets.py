"""Secrets of an environment, by the names of its variables.

Use `runtime.cleaning`, which also has the secrets of the host's settings. An import contract keeps other packages from
using this module.
"""

import os
from collections.abc import Mapping

from metier.telemetry.secret_names import is_secret_name


def list_secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """List the values of variables with secret names: `*_API_KEY`, `*_TOKEN`, `*_PASSWORD`, …."""
    # A path is the location of a secret and not a secret itself. It must exist, because base64 can start with `/` too.
    return tuple(value for name, value in environment.items() if is_secret_name(name) and not _is_existing_path(value))


def _is_existing_path(value: str) -> bool:
    # Not pathlib, which raises for a name that is too long.
    return value.startswith(("/", "~/", "./")) and os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111
