"""The tree reads like a table of contents: what one looks for is where its name says, and no folder is a heap."""

from pathlib import Path

import pytest
from where_is import ANSWERS, Answer

import metier

SOURCE = Path(metier.__file__).parent
MOST_FILES = 30


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.file)
def test_the_file_that_a_question_names_has_the_answer(answer: Answer) -> None:
    assert answer.definition in (SOURCE / answer.file).read_text(encoding="utf-8"), answer.question


def test_no_folder_holds_more_files_than_a_reader_takes_in() -> None:
    crowded = {
        folder.relative_to(SOURCE).as_posix(): count
        for folder in SOURCE.rglob("*")
        if folder.is_dir() and "bundled" not in folder.parts
        if (count := len(list(folder.glob("*.py")))) > MOST_FILES
    }

    assert crowded == {}
