"""What a model may call in a run, and who understands its calls."""

from dataclasses import dataclass

from metier.context.decoder import Decoder
from metier.messages import ToolSpec

type OfferKey = tuple[bool, frozenset[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Offer:
    tools: tuple[ToolSpec, ...]
    decoder: Decoder
