"""Identity and size of requests. A message is hashed once, however often it is sent again."""

import hashlib
from typing import NamedTuple

from metier.messages import Message
from metier.providers.base import ModelRequest


class Fingerprint(NamedTuple):
    hash: str
    """The same words to the same model give the same hash."""
    bytes: int


class Fingerprints:
    """Belongs to one run: it remembers the messages of its history."""

    def __init__(self) -> None:
        self._messages: dict[int, tuple[Message, bytes, int]] = {}

    def of(self, request: ModelRequest) -> Fingerprint:
        digest = hashlib.sha256(request.model.encode())
        size = 0
        for block in request.system:
            text = block.text.encode("utf-8", "surrogatepass")
            digest.update(text + b"\0")
            size += len(text)
        for message in request.messages:
            _, part, length = self._of_message(message)
            digest.update(part)
            size += length
        return Fingerprint(digest.hexdigest()[:32], size)

    def _of_message(self, message: Message) -> tuple[Message, bytes, int]:
        known = self._messages.get(id(message))
        if known is None or known[0] is not message:
            text = message.__pydantic_serializer__.to_json(message)
            known = (message, hashlib.sha256(text).digest(), len(text))
            self._messages[id(message)] = known
        return known
