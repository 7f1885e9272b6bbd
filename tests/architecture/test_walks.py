"""The walks on the architecture page match the code, and none is long."""

import pytest
from walks import BLOCK, MAX_TO_SOCKET, PAGE, WALKS, collect, render


@pytest.mark.parametrize("command", WALKS)
def test_walk_on_the_page_matches_the_code(command: str) -> None:
    listed = BLOCK.search(PAGE.read_text("utf-8"))
    assert listed is not None

    walk = collect(command)

    assert render({command: walk}).strip() in listed[0], "Run `.venv/bin/python tests/architecture/walks.py`"
    assert len(walk) <= MAX_TO_SOCKET
