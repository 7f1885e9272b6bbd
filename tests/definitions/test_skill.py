"""SKILL.md files as people write them load, and each deviation is reported with its line."""

from pathlib import Path

import pytest
from skill_files import codes, found, loaded, write_skill

from metier.definitions.skills.skill import Entrypoint, load_skill
from metier.definitions.text.yaml_text import Mapping, Sequence


def test_a_valid_skill_loads_without_warnings(tmp_path: Path) -> None:
    text = (
        "---\nname: pdf\ndescription: Fill forms. Use for PDFs.\nlicense: MIT\ncompatibility: Needs git\n"
        "metadata:\n  author: me\nallowed-tools: Bash(git add:*) Read\n---\n# PDF\n"
    )
    folder = write_skill(tmp_path, "pdf", text)

    for strict in (False, True):
        reading = load_skill(folder, strict=strict)
        skill = loaded(reading)
        assert reading.problems == ()
        assert (skill.name, skill.description, skill.license) == ("pdf", "Fill forms. Use for PDFs.", "MIT")
        assert (skill.compatibility, skill.metadata) == ("Needs git", {"author": "me"})
        assert skill.allowed_tools == ("Bash(git add:*)", "Read")
        assert (skill.body, skill.body_line, skill.id) == ("# PDF\n", 10, "pdf")
        assert (skill.folder, skill.file) == (folder, folder / "SKILL.md")


WAYS_TO_WRITE = {
    "crlf": b"---\r\nname: x\r\ndescription: Does it.\r\n---\r\nBody\r\n",
    "lone cr": b"---\rname: x\rdescription: Does it.\r---\rBody\r",
    "spaces after markers": b"---  \nname: x\ndescription: Does it.\n--- \t\nBody\n",
    "dots end": b"---\nname: x\ndescription: Does it.\n...\nBody\n",
    "flow style": b"---\n{name: x, description: Does it.}\n---\nBody\n",
    "quoted keys": b"---\n\"name\": 'x'\n'description': \"Does it.\"\n---\nBody\n",
    "folded": b"---\nname: x\ndescription: >\n  Does\n  it.\n---\nBody\n",
    "literal strip": b"---\nname: x\ndescription: |-\n  Does it.\n---\nBody\n",
    "plain over two lines": b"---\nname: x\ndescription: Does\n  it.\n---\nBody\n",
    "comment": b"---\n# who\nname: x # short\ndescription: Does it.\n---\nBody\n",
    "no body": b"---\nname: x\ndescription: Does it.\n---",
}


@pytest.mark.parametrize("text", WAYS_TO_WRITE.values(), ids=WAYS_TO_WRITE.keys())
def test_equivalent_front_matter_is_read_equally(tmp_path: Path, text: bytes) -> None:
    reading = load_skill(write_skill(tmp_path, "x", text), strict=True)

    skill = loaded(reading)
    assert (skill.name, skill.description) == ("x", "Does it.")
    assert reading.problems == ()


DEVIATIONS: dict[str, tuple[bytes, list[tuple[str, int]]]] = {
    "byte order mark": (b"\xef\xbb\xbf---\nname: x\ndescription: Does it.\n---\n", [("byte_order_mark", 1)]),
    "blank lines first": (b"\n\n---\nname: x\ndescription: Does it.\n---\n", [("late_front_matter", 3)]),
    "comment first": (b"<!-- x -->\n---\nname: x\ndescription: Does it.\n---\n", [("late_front_matter", 2)]),
    "code fence first": (b"```yaml\n---\nname: x\ndescription: Does it.\n---\n```\n", [("late_front_matter", 2)]),
    "no first marker": (b"name: x\ndescription: Does it.\n---\nBody\n", [("late_front_matter", 1)]),
    "no end": (b"---\nname: x\ndescription: Does it.\n\n# Title\n", [("unclosed_front_matter", 1)]),
    "no end, rule in the body": (
        b"---\nname: x\ndescription: Does it.\n\n# Title\n\nSome: text: here\nmore\n\n---\n\nEnd\n",
        [("unclosed_front_matter", 4)],
    ),
    "colon": (b"---\nname: x\nlicense: MIT: really\ndescription: Does it.\n---\n", [("yaml_repaired", 3)]),
    "at sign": (b"---\nname: x\nlicense: @me\ndescription: Does it.\n---\n", [("yaml_repaired", 3)]),
    "quote never closed": (b"---\nname: x\nlicense: 'MIT\ndescription: Does it.\n---\n", [("yaml_repaired", 3)]),
    "bracket never closed": (b"---\nname: x\nlicense: [MIT\ndescription: Does it.\n---\n", [("yaml_repaired", 3)]),
    "tab": (b"---\nname: x\nmetadata:\n\ta: b\ndescription: Does it.\n---\n", [("tab_indent", 3)]),
    "key twice": (b"---\nname: x\ndescription: Does it.\nname: y\n---\n", [("duplicate_key", 4)]),
    "bad byte": (b"---\nname: x\ndescription: Does it.\nlicense: caf\xe9\n---\n", [("not_utf8", 4)]),
    "control": (b"---\nname: x\nlicense: a\x07b\ndescription: Does it.\n---\n", [("control_character", 3)]),
    "tools as list": (
        b"---\nname: x\ndescription: Does it.\nallowed-tools: [Read, Bash]\n---\n",
        [("allowed_tools_list", 4)],
    ),
    "metadata as text": (b"---\nname: x\ndescription: Does it.\nmetadata: v1\n---\n", [("metadata_not_mapping", 4)]),
    "no name": (b"---\ndescription: Does it.\n---\n", [("missing_name", 1)]),
    "empty name": (b"---\nname:\ndescription: Does it.\n---\n", [("missing_name", 2)]),
    "empty compatibility": (
        b"---\nname: x\ndescription: Does it.\ncompatibility: ''\n---\n",
        [("compatibility_length", 4)],
    ),
}


@pytest.mark.parametrize("case", DEVIATIONS.values(), ids=DEVIATIONS.keys())
def test_a_skill_with_a_deviation_loads_with_a_warning_and_its_line(
    tmp_path: Path, case: tuple[bytes, list[tuple[str, int]]]
) -> None:
    data, expected = case

    reading = load_skill(write_skill(tmp_path, "x", data))

    skill = loaded(reading)
    assert (skill.name, skill.description) == ("x", "Does it.")
    assert found(reading.problems) == [("warning", code, line) for code, line in expected]


@pytest.mark.parametrize("case", DEVIATIONS.values(), ids=DEVIATIONS.keys())
def test_the_same_deviation_is_an_error_in_strict_mode(
    tmp_path: Path, case: tuple[bytes, list[tuple[str, int]]]
) -> None:
    reading = load_skill(write_skill(tmp_path, "x", case[0]), strict=True)

    if codes(reading.problems) == {"byte_order_mark"}:
        assert reading.skill is not None
    else:
        assert reading.skill is None
        assert all(problem.line for problem in reading.problems)


@pytest.mark.parametrize("word", ["yes", "no", "on", "true", "1.0", "1e3", "0x10", "2024-01-01", "12:30:00"])
def test_a_name_that_yaml_would_convert_stays_a_string(tmp_path: Path, word: str) -> None:
    folder = write_skill(tmp_path, "x", f"---\nname: {word}\ndescription: {word}\nlicense: {word}\n---\n")

    name = word if word.replace("-", "").isalnum() else "x"
    skill = loaded(load_skill(folder))
    assert (skill.name, skill.description, skill.license) == (name, word, word)


def test_markers_inside_values_do_not_end_the_front_matter(tmp_path: Path) -> None:
    text = "---\nname: x\ndescription: a --- b ---\nlicense: |\n  ---\n  ...\n---\nBody\n---\nmore\n"

    skill = loaded(load_skill(write_skill(tmp_path, "x", text)))

    assert skill.description == "a --- b ---"
    assert skill.license == "---\n..."
    assert skill.body == "Body\n---\nmore\n"


def test_a_value_with_an_unquoted_colon_is_complete(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "x", "---\nname: x\ndescription: Use when: asked, or: told # now\n---\n")

    assert loaded(load_skill(folder)).description == "Use when: asked, or: told # now"


def test_invalid_names_are_warnings_for_foreign_skills(tmp_path: Path) -> None:
    reading = load_skill(write_skill(tmp_path, "folder", "---\nname: My_Skill--\ndescription: d\n---\n"))

    assert loaded(reading).name == "My_Skill--"
    assert codes(reading.problems) == {
        "name_case",
        "name_hyphen",
        "name_double_hyphen",
        "name_characters",
        "name_folder",
    }


def test_the_first_paragraph_replaces_a_missing_description(tmp_path: Path) -> None:
    text = "---\nname: x\n---\n\n# Title\n\n```\ncode\n```\n\nDoes one thing\nvery well.\n\nMore.\n"
    reading = load_skill(write_skill(tmp_path, "x", text))

    assert loaded(reading).description == "Does one thing very well."
    assert found(reading.problems) == [("warning", "missing_description", 1)]


def test_a_text_without_front_matter_is_a_skill(tmp_path: Path) -> None:
    reading = load_skill(write_skill(tmp_path, "notes", "# Notes\n\nTakes notes.\n"))

    skill = loaded(reading)
    assert (skill.name, skill.description, skill.body) == ("notes", "Takes notes.", "# Notes\n\nTakes notes.\n")
    assert codes(reading.problems) == {"no_front_matter", "missing_name", "missing_description"}


NOT_LOADED = {
    "empty": (b"", "empty_file", 1),
    "blank": (b" \n\n", "empty_file", 1),
    "a list": (b"---\n- a\n- b\n---\nBody\n", "not_a_mapping", 2),
    "nothing to say": (b"---\nname: x\n---\n", "missing_description", 1),
    "too large": (b"---\nname: x\nk: " + b"a" * 70_000 + b": b\n---\n", "yaml_too_large", 2),
    "too deep": (b"---\nname: x\nk: " + b"[" * 30 + b"]" * 30 + b"\n---\n", "yaml_too_deep", 3),
}


@pytest.mark.parametrize("case", NOT_LOADED.values(), ids=NOT_LOADED.keys())
def test_a_load_failure_has_a_reason_with_a_line(tmp_path: Path, case: tuple[bytes, str, int]) -> None:
    data, code, line = case

    reading = load_skill(write_skill(tmp_path, "x", data))

    assert reading.skill is None
    assert [entry for entry in found(reading.problems) if entry[0] == "error"] == [("error", code, line)]


def test_missing_files_dangling_links_and_folders_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "SKILL.md").symlink_to(tmp_path / "gone")
    (tmp_path / "folder" / "SKILL.md").mkdir(parents=True)

    reasons = {name: codes(load_skill(tmp_path / name).problems) for name in ("none", "link", "folder", "absent")}

    assert reasons == {
        "none": {"no_skill_file"},
        "link": {"dangling_link"},
        "folder": {"not_a_file"},
        "absent": {"unreadable"},
    }


def test_a_file_name_in_another_case_is_found_with_a_warning(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "x")
    (folder / "SKILL.md").rename(folder / "skill.md")

    reading = load_skill(folder)

    assert loaded(reading).file.name == "skill.md"
    assert codes(reading.problems) == {"file_name"}


def test_extension_fields_are_read_at_the_top_level(tmp_path: Path) -> None:
    text = """---
name: x
description: d
version: 1.10
author: Me
repository: https://example.org/x
min_agent_base_version: 0.1.0
max_agent_base_version: 1.0.0
toolsets:
  - toolsets.hello:HelloExtended
scripts: [status, markets.py]
scripts_ignore: ["_*.py"]
permissions:
  env: [KALSHI_API_KEY, KALSHI_*]
tags: a, b
entrypoint:
  script: status
  args: ["--path", "{workspace}"]
tools: [Read]
skills: inherit
tasks: []
tool_approvals:
  default: approve
  rules:
    - tool: Read
      allow: true
state_persistence: facts_only
interaction_outcomes:
  max_turns: 4
---
"""
    reading = load_skill(write_skill(tmp_path, "x", text))

    skill = loaded(reading)
    assert reading.problems == ()
    assert (skill.version, skill.author, skill.repository) == ("1.10", "Me", "https://example.org/x")
    assert (skill.min_agent_base_version, skill.max_agent_base_version) == ("0.1.0", "1.0.0")
    assert skill.toolsets == ("toolsets.hello:HelloExtended",)
    assert (skill.scripts, skill.scripts_ignore) == (("status", "markets.py"), ("_*.py",))
    assert (skill.permissions_env, skill.tags) == (("KALSHI_API_KEY", "KALSHI_*"), ("a", "b"))
    assert skill.entrypoint == Entrypoint("status", ("--path", "{workspace}"))
    assert (skill.tools, skill.skills, skill.tasks) == (("Read",), ("inherit",), ())
    assert isinstance(skill.tool_approvals, Mapping)
    rules = skill.tool_approvals.find("rules")
    assert rules is not None
    assert isinstance(rules.value, Sequence)
    assert rules.value.line == 25
    assert [entry.key for entry in skill.contract.entries] == ["interaction_outcomes", "state_persistence"]


def test_extension_fields_below_metadata_pass_strict_mode(tmp_path: Path) -> None:
    text = """---
name: x
description: d
metadata:
  version: "1.0"
  toolsets: toolsets.a:A, toolsets.b:B
  scripts_ignore: "_*.py"
  permissions_env: TOKEN
  tags: one, two
  entrypoint: status --json "{task text}"
---
"""
    reading = load_skill(write_skill(tmp_path, "x", text), strict=True)

    skill = loaded(reading)
    assert reading.problems == ()
    assert (skill.version, skill.tags) == ("1.0", ("one", "two"))
    assert skill.toolsets == ("toolsets.a:A", "toolsets.b:B")
    assert (skill.scripts, skill.scripts_ignore, skill.permissions_env) == (None, ("_*.py",), ("TOKEN",))
    assert skill.entrypoint == Entrypoint("status", ("--json", "{task text}"))


def test_strict_mode_reports_fields_outside_the_specification(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "x", "---\nname: x\ndescription: d\nversion: 1\nlicence: MIT\n---\n")

    reading = load_skill(folder, strict=True)

    assert loaded(reading).version == "1"
    assert found(reading.problems) == [("warning", "extension_field", 4), ("warning", "unknown_field", 5)]
    assert reading.problems[1].hint == "Did you mean 'license'?"
    assert load_skill(folder).problems == ()


@pytest.mark.parametrize(
    "written",
    [
        "entrypoint: status --query 'two words' {workspace}",
        "entrypoint:\n  script: status\n  args: --query 'two words' {workspace}",
        "entrypoint:\n  script: status\n  args: [--query, two words, '{workspace}']",
    ],
)
def test_an_entrypoint_can_be_one_line_or_a_mapping(tmp_path: Path, written: str) -> None:
    folder = write_skill(tmp_path, "x", f"---\nname: x\ndescription: d\n{written}\n---\n")

    assert loaded(load_skill(folder)).entrypoint == Entrypoint("status", ("--query", "two words", "{workspace}"))


def test_a_list_instead_of_an_entrypoint_is_a_warning(tmp_path: Path) -> None:
    reading = load_skill(write_skill(tmp_path, "x", "---\nname: x\ndescription: d\nentrypoint: [a]\n---\n"))

    assert loaded(reading).entrypoint is None
    assert found(reading.problems) == [("warning", "entrypoint", 4)]
