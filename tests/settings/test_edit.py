"""One setting is changed in a file; every other character stays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metier.cli.config import set_in_text
from metier.errors import UsageError
from metier.settings.keys import render_template

FILE = """\
# mine
model:  # who answers
  name: claude-sonnet-4-5  # the usual one
  # nothing else for now

runtime:
  max_turns: 8
"""


def test_a_value_is_replaced_and_its_comment_kept() -> None:
    assert set_in_text(FILE, "model.name", "m") == FILE.replace("claude-sonnet-4-5", "m")


def test_a_key_is_added_to_its_section() -> None:
    changed = set_in_text(FILE, "runtime.profile", "guarded")

    assert changed == FILE + "  profile: guarded\n"


def test_a_section_is_added_with_everything_below_it() -> None:
    changed = set_in_text(FILE, "model.providers.openai.base_url", '"http://localhost:1/v1"')

    assert '  providers:\n    openai:\n      base_url: "http://localhost:1/v1"\n' in changed
    assert "# the usual one" in changed


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        ("", "runtime.max_turns", "9", "runtime:\n  max_turns: 9\n"),
        ("# only a comment", "runtime.max_turns", "9", "# only a comment\nruntime:\n  max_turns: 9\n"),
        ("runtime:\n", "runtime.max_turns", "9", "runtime:\n  max_turns: 9\n"),
        ("runtime:", "runtime.max_turns", "9", "runtime:\n  max_turns: 9\n"),
        ("runtime:\n  max_turns:\n", "runtime.max_turns", "9", "runtime:\n  max_turns: 9\n"),
        ('{"runtime": {"max_turns": 8}}', "runtime.max_turns", "9", '{"runtime": {"max_turns": 9}}'),
        ('{"runtime": {}}', "runtime.max_turns", "9", '{"runtime": {"max_turns": 9}}'),
        ("skills:\n  enabled:\n    - a\n    - b\n  # z\n", "skills.enabled", "[c]", "skills:\n  enabled: [c]\n  # z\n"),
        ("skills: {enabled: [a]}\n", "skills.enabled", "none", "skills: {enabled: none}\n"),
    ],
)  # fmt: skip
def test_files_in_every_style_can_be_changed(before: str, key: str, value: str, after: str) -> None:
    assert set_in_text(before, key, value) == after


def test_a_file_that_is_not_yaml_is_not_touched() -> None:
    with pytest.raises(UsageError, match="YAML syntax error in line 1"):
        set_in_text("a: [1", "runtime.max_turns", "9")


@settings(deadline=None, max_examples=4)
@given(st.sampled_from(["runtime.max_turns", "model.name", "skills.enabled", "model.providers.openai.base_url"]))
def test_the_file_with_every_setting_changes_in_one_line(key: str) -> None:
    before = render_template().splitlines()

    after = set_in_text(render_template(), key, "x").splitlines()

    assert len(after) == len(before)
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
