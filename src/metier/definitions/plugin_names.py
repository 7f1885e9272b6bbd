"""What the settings call something that an installed plugin brings: `plugin/<name>`."""

from typing import Annotated

from pydantic import Field

PLUGIN = "plugin/"

type PluginName = Annotated[str, Field(pattern=rf"^{PLUGIN}[a-z0-9][a-z0-9._-]*$")]
