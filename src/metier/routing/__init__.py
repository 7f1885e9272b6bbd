"""Which skills are candidates for a request. `rank` is the door for callers that have a list of skills in hand."""

from metier.routing.router import rank

__all__ = ["rank"]
