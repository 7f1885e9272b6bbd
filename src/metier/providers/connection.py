"""What a provider needs to reach its server. A value: nothing is opened here."""

from dataclasses import dataclass, field

from metier.providers.facts import FactBook
from metier.providers.options import ApiStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where to connect and as whom."""

    facts: FactBook
    key: str = field(default="", repr=False)
    base_url: str = ""
    """Empty: the vendor's own address, or what its SDK reads from the environment."""
    api: ApiStyle = "auto"


@dataclass(frozen=True, slots=True)
class Server:
    """Who an error message is about, and the secret it must not contain."""

    provider: str
    key: str = field(default="", repr=False)
