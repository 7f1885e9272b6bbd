"""Bodies of requests and responses of the API."""

from pydantic import ConfigDict

from metier.values import Value


class Body(Value):
    """Built when its class is defined: FastAPI reads the schema before anything is validated."""

    model_config = ConfigDict(defer_build=False)
