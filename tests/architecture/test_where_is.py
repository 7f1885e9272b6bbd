"""The tree reads like a table of contents: a file is where its name suggests."""

from pathlib import Path

import pytest
from where_is import ANSWERS, Answer

import metier

SOURCE = Path(metier.__file__).parent


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.file)
def test_the_file_named_for_a_question_has_the_answer(answer: Answer) -> None:
    assert answer.definition in (SOURCE / answer.file).read_text(encoding="utf-8"), answer.question
