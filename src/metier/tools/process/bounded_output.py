"""Bounded output: the start and the end of a stream of any length."""

from msgspec import Struct

_STDERR_LABEL = "[stderr]"


class Output(Struct, frozen=True, kw_only=True):
    """Collected output of a stream: all of it, or its head and tail."""

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0

    @property
    def dropped_bytes(self) -> int:
        return self.total_bytes - len(self.head) - len(self.tail)

    @property
    def is_truncated(self) -> bool:
        return self.dropped_bytes > 0

    @property
    def text(self) -> str:
        """The output as UTF-8, with `\ufffd` for invalid bytes, and a line in the middle if bytes were dropped."""
        if not self.is_truncated:
            return (self.head + self.tail).decode("utf-8", "replace")
        # A character that was split by the truncation must not become a replacement character.
        head = (
            self.head.decode("utf-8", "ignore") if _cuts_character(self.head) else self.head.decode("utf-8", "replace")
        )
        tail = self.tail[_continuation_bytes(self.tail) :].decode("utf-8", "replace")
        return f"{head}\n… {self.dropped_bytes} bytes dropped …\n{tail}"

    def last(self, count: int) -> str:
        """Return the last bytes as text."""
        kept = (self.head + self.tail)[-count:] if not self.is_truncated else self.tail[-count:]
        return kept[_continuation_bytes(kept) :].decode("utf-8", "replace")


def render_streams(stdout: Output, stderr: Output) -> str:
    """Join standard output and standard error, the latter under a label."""
    parts = [stdout.text]
    if stderr.total_bytes:
        parts += [_STDERR_LABEL, stderr.text]
    return "\n".join(part.removesuffix("\n") for part in parts if part)


def count_label_characters(stdout: Output, stderr: Output) -> int:
    """Return how many characters `render_streams` adds to the two streams."""
    return len(_STDERR_LABEL) + 1 + bool(stdout.text) if stderr.total_bytes else 0


class Capture:
    """Collects a stream chunk by chunk. Never holds more than about twice `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._head_bytes = max_bytes - max_bytes // 2
        self._tail_bytes = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, chunk: bytes) -> None:
        self._total += len(chunk)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        # Truncate rarely: moving the tail for every chunk would cost the stream's length times the limit.
        if len(self._tail) > 2 * self._tail_bytes + 65_536:
            self._cut_tail()

    def output(self) -> Output:
        self._cut_tail()
        return Output(head=bytes(self._head), tail=bytes(self._tail), total_bytes=self._total)

    def _cut_tail(self) -> None:
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]


def _continuation_bytes(data: bytes) -> int:
    """Count the bytes at the start that belong to a character that started earlier."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


def _cuts_character(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
