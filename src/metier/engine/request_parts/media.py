"""Which pictures and documents a request holds. A message is looked at once, however often it is sent again."""

from collections.abc import Iterable
from operator import is_

from metier.messages import MediaPart, Message, ToolResultPart


class MediaFinder:
    """Belongs to one run. A history that only grew since the last request is not gone through again."""

    def __init__(self) -> None:
        self._seen: tuple[Message, ...] = ()
        self._digests: frozenset[str] = frozenset()

    def find_digests(self, messages: tuple[Message, ...]) -> frozenset[str]:
        known = len(self._seen)
        if known > len(messages) or not all(map(is_, self._seen, messages)):
            known, self._digests = 0, frozenset()
        self._digests |= _find_digests(messages[known:])
        self._seen = messages
        return self._digests


def _find_digests(messages: Iterable[Message]) -> set[str]:
    digests: set[str] = set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                digests.update(each.digest for each in part.media)
            elif isinstance(part, MediaPart):
                digests.add(part.digest)
    return digests
