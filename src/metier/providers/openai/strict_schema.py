"""Whether a JSON schema is of the strict kind that OpenAI can hold a model to. Pure."""

from metier.providers.json_values import as_list, as_object


def schema_is_strict(schema: object) -> bool:
    """Every object closes itself (`additionalProperties: false`) and requires all its properties."""
    node = as_object(schema)
    properties = as_object(node.get("properties"))
    if "properties" in node or node.get("type") == "object":
        closed = node.get("additionalProperties") is False
        if not closed or set(map(str, as_list(node.get("required")))) != set(properties):
            return False
    children = [*properties.values(), *as_object(node.get("$defs")).values(), *as_list(node.get("anyOf"))]
    return all(schema_is_strict(child) for child in [*children, node.get("items")] if child is not None)
