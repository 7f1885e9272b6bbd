"""What every way of finding a schema shares: the words for a claim, and for data that cannot be read."""

DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Unreadable(Exception):
    """The data is not what the source type says."""


def claim(basis, evidence, *, examples=()):
    return {"basis": basis, "evidence": evidence, **({"examples": list(examples)} if examples else {})}


def point(name):
    """A name as a part of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")
