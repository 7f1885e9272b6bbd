"""What the event log says of ranking beside words. Pure values."""

from metier.events import Payload


class EmbeddingsUnavailable(Payload):
    """What `routing.embeddings` names could not be used, so the skills were ranked by words alone."""

    event_type = "embeddings_unavailable"
    reason: str
