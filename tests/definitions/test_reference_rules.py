"""The rules of the Agent Skills specification, as tested by the reference library, in strict mode."""

from pathlib import Path

import pytest
from skill_files import codes, loaded, write_skill

from metier.definitions.skills.skill import load_skill, render_available_skills


def check(folder: Path, name: str, rest: str = "description: A test skill\n") -> set[str]:
    """Return the error codes of a skill with this name in a folder of this name."""
    reading = load_skill(write_skill(folder, name.lower(), f"---\nname: {name}\n{rest}---\nBody\n"), strict=True)
    assert (reading.skill is None) == any(problem.severity == "error" for problem in reading.problems)
    return codes(reading.problems)


@pytest.mark.parametrize("name", ["my-skill", "a", "1", "x" * 64, "a-1-b", "技能", "мой-навык", "été"])
def test_valid_names_are_accepted(tmp_path: Path, name: str) -> None:
    assert check(tmp_path, name) == set()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("MySkill", "name_case"),
        ("НАВЫК", "name_case"),
        ("x" * 65, "name_too_long"),
        ("-my-skill", "name_hyphen"),
        ("my-skill-", "name_hyphen"),
        ("my--skill", "name_double_hyphen"),
        ("my_skill", "name_characters"),
        ("my skill", "name_characters"),
        ("my.skill", "name_characters"),
    ],
)
def test_invalid_names_are_reported(tmp_path: Path, name: str, code: str) -> None:
    assert code in check(tmp_path, name)


def test_the_name_must_match_the_folder(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "wrong", "---\nname: right\ndescription: d\n---\n")

    assert codes(load_skill(folder, strict=True).problems) == {"name_folder"}


def test_composed_and_decomposed_letters_are_the_same_name(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "cafe\u0301", "---\nname: caf\u00e9\ndescription: d\n---\n")

    assert load_skill(folder, strict=True).problems == ()


@pytest.mark.parametrize(("length", "fits"), [(1, True), (1024, True), (1025, False)])
def test_length_of_the_description_is_limited(tmp_path: Path, length: int, fits: bool) -> None:
    found = check(tmp_path, "x", f"description: {'d' * length}\n")

    assert found == (set() if fits else {"description_too_long"})


@pytest.mark.parametrize(("length", "fits"), [(1, True), (500, True), (501, False)])
def test_length_of_the_compatibility_is_limited(tmp_path: Path, length: int, fits: bool) -> None:
    found = check(tmp_path, "x", f"description: d\ncompatibility: {'c' * length}\n")

    assert found == (set() if fits else {"compatibility_length"})


@pytest.mark.parametrize("line", ["", "description:\n", "description: ''\n", "description: '  '\n"])
def test_a_description_is_required(tmp_path: Path, line: str) -> None:
    assert check(tmp_path, "x", line) == {"missing_description"}


@pytest.mark.parametrize("text", ["---\ndescription: d\n---\n", "---\nname: ' '\ndescription: d\n---\n"])
def test_a_name_is_required(tmp_path: Path, text: str) -> None:
    assert codes(load_skill(write_skill(tmp_path, "x", text), strict=True).problems) == {"missing_name"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("# No front matter here", "no_front_matter"),
        ("---\nname: x\ndescription: d\n", "unclosed_front_matter"),
        ("---\nname: [broken\ndescription: d\n---\n", "yaml_syntax"),
        ("---\n- a\n- list\n---\n", "not_a_mapping"),
        ("---\njust text\n---\n", "not_a_mapping"),
        ("---\n---\n", "empty_front_matter"),
    ],
)
def test_front_matter_must_exist_be_closed_and_be_yaml(tmp_path: Path, text: str, code: str) -> None:
    reading = load_skill(write_skill(tmp_path, "x", text), strict=True)

    assert reading.skill is None
    assert code in codes(reading.problems)


def test_metadata_maps_strings_to_strings(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "x", "---\nname: x\ndescription: d\nmetadata:\n  version: 1.0\n  ok: true\n---\n")

    assert loaded(load_skill(folder, strict=True)).metadata == {"version": "1.0", "ok": "true"}
    assert check(tmp_path, "y", "description: d\nmetadata:\n  a: [b]\n") == {"metadata_not_text"}


def test_the_prompt_equals_that_of_the_reference_library(tmp_path: Path) -> None:
    first = write_skill(tmp_path, "a", '---\nname: a\ndescription: Use <foo> & "bar"\n---\n')
    second = write_skill(tmp_path, "b")

    text = render_available_skills([loaded(load_skill(first)), loaded(load_skill(second))])

    assert text == "\n".join(
        [
            *("<available_skills>", "<skill>", "<name>", "a", "</name>", "<description>"),
            *("Use &lt;foo&gt; &amp; &quot;bar&quot;", "</description>"),
            *("<location>", str(first / "SKILL.md"), "</location>", "</skill>"),
            *("<skill>", "<name>", "b", "</name>", "<description>", "Does b.", "</description>"),
            *("<location>", str(second / "SKILL.md"), "</location>", "</skill>", "</available_skills>"),
        ]
    )
    assert render_available_skills([]) == "<available_skills>\n</available_skills>"
