"""Head and tail of a stream of any length."""

from hypothesis import given
from hypothesis import strategies as st

from metier.tools.process.bounded_output import Capture


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(min_value=0, max_value=50))
def test_head_and_tail_are_kept_and_every_other_byte_is_counted(chunks: list[bytes], limit: int) -> None:
    whole = b"".join(chunks)
    capture = Capture(limit)
    for chunk in chunks:
        capture.add(chunk)

    output = capture.output()

    assert output.total_bytes == len(whole)
    assert len(output.head) + len(output.tail) + output.dropped_bytes == len(whole)
    assert whole.startswith(output.head)
    assert whole.endswith(output.tail)
    assert output.is_truncated == (len(whole) > limit)
    if not output.is_truncated:
        assert output.text == whole.decode("utf-8", "replace")


def test_marker_states_how_much_is_missing() -> None:
    capture = Capture(8)
    capture.add(b"abcdefghijklmnop")

    assert capture.output().text == "abcd\n… 8 bytes dropped …\nmnop"
    assert capture.output().last(2) == "op"


def test_truncation_inside_a_character_adds_no_replacement_character() -> None:
    capture = Capture(8)
    capture.add(("x" + "€" * 10 + "yy").encode())

    assert "\ufffd" not in capture.output().text


def test_memory_does_not_grow_with_the_stream() -> None:
    capture = Capture(1000)
    for _ in range(10_000):
        capture.add(b"x" * 1000)

    assert capture.output().total_bytes == 10_000_000
    assert len(capture.output().head) + len(capture.output().tail) == 1000
