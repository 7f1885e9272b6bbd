"""The `store:` section of `agent.yaml`: which database holds the runs. Never an address with a password."""

from typing import Annotated, Literal

from pydantic import Field

from metier.definitions.plugin_names import PluginName
from metier.messages import Value

type StoreBackend = Literal["sqlite", "postgres"]


class StoreOptions(Value):
    """Which database holds the runs."""

    backend: StoreBackend | PluginName = Field(
        default="sqlite",
        description="Where runs live: one SQLite file on this machine, a PostgreSQL server, or `plugin/<name>`.",
    )
    database_url_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="DATABASE_URL",
        description="The environment variable that holds the address of the server, password included.",
    )
