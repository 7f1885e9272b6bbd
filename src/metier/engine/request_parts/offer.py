"""What a model may call in a run, how it is told, and what understands its calls."""

from msgspec import Struct

from metier.context.decoder import Decoder
from metier.messages import ToolSpec

type OfferKey = tuple[bool, frozenset[str], frozenset[str], bool]


class Offer(Struct, frozen=True):
    tools: tuple[ToolSpec, ...]
    decoder: Decoder
    protocol: str = ""
    """The tools in words, for a model that decides in JSON; empty where they are sent as tools."""
