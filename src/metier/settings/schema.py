"""The JSON Schema of `agent.yaml`, for editors and other checkers."""

from metier.settings.model import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_schema() -> dict[str, object]:
    """JSON Schema 2020-12: every section and key with its description, default, words and bounds."""
    schema: dict[str, object] = Settings.model_json_schema(mode="validation")
    return {"$schema": DIALECT, **schema, "title": "agent.yaml"}
