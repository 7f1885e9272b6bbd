"""Excerpts are marked, count the missing text, and respect their size."""

import re

import pytest

from metier.telemetry.excerpt import cut_end, cut_middle, one_line


@pytest.mark.parametrize("where", ["", "kept/all.txt"])
@pytest.mark.parametrize("size", [1_000, 1_001, 9_999, 10_000, 100_050])
def test_a_truncated_text_keeps_both_ends_within_the_size_and_counts_what_is_missing(size: int, where: str) -> None:
    text = "".join(chr(0x4E00 + index % 5_000) for index in range(size))

    shown = cut_middle(text, 900, where=where)

    head, told, tail = re.split(r"\n\[… (\d+ characters omitted[^…]*) …\]\n", shown)
    assert len(shown) <= 900
    assert text.startswith(head)
    assert text.endswith(tail)
    assert abs(len(head) - len(tail)) <= 1
    assert told.startswith(f"{size - len(head) - len(tail)} characters")
    assert told.endswith(where)


def test_a_text_that_fits_is_the_text_itself() -> None:
    text = "x" * 900

    assert cut_middle(text, 900) is text
    assert cut_end(text, 900) is text


def test_only_the_marker_remains_without_space() -> None:
    assert cut_middle("x" * 50, 3) == "\n[… 50 characters omitted …]\n"


def test_a_line_of_a_list_has_no_line_breaks_and_one_ellipsis() -> None:
    assert one_line("write\n the   report, then read it", 19) == "write the report,…"
    assert one_line("write\n the   report", 20) == "write the report"
