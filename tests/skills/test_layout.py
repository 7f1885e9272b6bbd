import pytest

from metier.errors import SkillRejected
from metier.skills.layout import check_paths


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/x", "a//b", "a/../b", "./a", ""),
        *(".git", ".git/config", "a/.git/hooks/x", ".GIT/config", "git~1/x", "a/．git"),
        *("-rf", "scripts/--upload-pack=x.py", "~", "~ada/x"),
        *("a\\b", "a:b", "a\nb", "a\x00b", "a\x1b[31m", 'a"b', "a*b"),
        *("CON", "nul.txt", "a/Com1.py", "lpt9", "AUX.tar.gz"),
        *("a.", "a ", "a/b. /c"),
        *("a\u200bb", "a\u202eb.py", "a\ufeffb", "a\u00adb", "a\u2028b", "a\u00a0b"),
        *("__pycache__/x.py", "a/__PyCache__/x", "x.pyc", "X.PYO"),
        *("x" * 256, "/".join(["x" * 200] * 6), "bad\udcff"),
    ],
)
def test_special_name_is_rejected(path: str) -> None:
    with pytest.raises(SkillRejected):
        check_paths(["SKILL.md", path])


@pytest.mark.parametrize(
    "paths",
    [
        ["a.md", "A.md"],
        ["Scripts/a.py", "scripts/b.py"],
        ["a", "A/b"],
        ["straße.md", "STRASSE.md"],
        ["caf\u00e9.md", "cafe\u0301.md"],
        ["a", "a/b"],
        ["a", "a"],
    ],
)
def test_names_equal_on_some_file_system_are_rejected(paths: list[str]) -> None:
    with pytest.raises(SkillRejected):
        check_paths(paths)


def test_ordinary_names_are_accepted() -> None:
    check_paths(
        ["SKILL.md", "scripts/a_b-c.py", "references/Über uns (1).md", "assets/日本.png", ".gitattributes", "a/b/c"]
    )
