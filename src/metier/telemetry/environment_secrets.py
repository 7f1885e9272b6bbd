"""The secrets of an environment, by the names of its variables.

A run, a server or a conversation needs those of its host too: `runtime.cleaning` has both. A contract keeps every other
room from finding the secrets of a host by itself.
"""

from collections.abc import Mapping

from metier.telemetry.names import is_secret_name


def list_secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose names say that they are secret: `*_API_KEY`, `*_TOKEN`, `*_PASSWORD`, ….

    A value that is a path is the place of a secret, not a secret.
    """
    return tuple(
        value for name, value in environment.items() if is_secret_name(name) and not value.startswith(("/", "~/", "./"))
    )
