import pytest

from metier.definitions.names import canonical_name, canonical_script_name, check_name
from metier.errors import InvalidName

BAD = (
    *("", ".", "..", "../x", "/abs", "a/b", "a\\b", ".hidden", "~", "~root", "__pycache__", "__PyCache__", "a b", " a"),
    *("a" * 65, "a\x00b", "a\nb", "a\n", "é", "a.b", "a:b", "$HOME", "a;b", "-\u200b"),
)


@pytest.mark.parametrize("name", BAD)
def test_ambiguous_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(name)

    assert caught.value.code == "invalid_name"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["a", "A", "kalshi-markets", "Kalshi_Markets", "a" * 64, "0", "_x"])
def test_plain_names_are_accepted(name: str) -> None:
    check_name(name)


def test_case_and_underscores_do_not_distinguish_skills() -> None:
    assert canonical_name("Kalshi_Markets") == canonical_name("kalshi-markets") == "kalshi-markets"


@pytest.mark.parametrize("name", ["status", "status.py", "Status.py", "STATUS.PY", "Status"])
def test_a_script_has_one_name_with_or_without_extension(name: str) -> None:
    assert canonical_script_name(name) == "status.py"


@pytest.mark.parametrize("name", ["", ".py", "../status", "a/b.py", "status.py.py", "status.sh", "~", "a" * 65])
def test_script_names_that_are_not_plain_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        canonical_script_name(name)
