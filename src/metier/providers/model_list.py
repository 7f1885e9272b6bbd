"""The list of models that a server offers, out of its reply. Knows no vendor."""

from metier.providers.json_values import Wire, as_objects, as_text

MOST_MODELS = 1000
_LONGEST_NAME = 200


def name_models(reply: Wire, *, items: str = "data", name: str = "id") -> tuple[str, ...]:
    """Names without duplicates; what is no name is passed over, since anything may answer at an address."""
    names = [as_text(each.get(name)) for each in as_objects(reply.get(items))[:MOST_MODELS]]
    return tuple(dict.fromkeys(each for each in names if each and len(each) <= _LONGEST_NAME and each.isprintable()))
