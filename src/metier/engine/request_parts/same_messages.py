"""Keep the objects of messages that a run sends again, so that what is known of them by identity stays known."""

from operator import is_

from metier.messages import Message


class SameMessages:
    """Belongs to one run. A request is built again each turn; most of its messages say what they said before.

    Encoding, counting and hashing a history go by the identity of its messages. One new object at its beginning, such
    as the task, would make them go through all of it again, on every turn.
    """

    def __init__(self) -> None:
        self._last: tuple[Message, ...] = ()

    def keep(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The same messages; up to the first that differs from the last request's, with the objects of that request."""
        if all(map(is_, self._last, messages)):
            self._last = messages
            return messages
        kept = list(messages)
        for index, (old, new) in enumerate(zip(self._last, messages, strict=False)):
            if old is new:
                continue
            if old != new:
                break
            kept[index] = old
        self._last = tuple(kept)
        return self._last
