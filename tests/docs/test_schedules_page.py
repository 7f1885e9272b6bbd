"""Check that the example file on the schedules page is valid and its table names every field."""

import re
from pathlib import Path

import pytest

from metier.definitions.schedule import ScheduleDefinition, parse_schedules

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "schedules.md"


def test_the_example_file_is_valid_and_every_field_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)

    found = parse_schedules(example.encode(), file="schedules.yaml")

    assert found.problems == ()
    assert [schedule.name for schedule in found.schedules] == ["stock", "review"]
    assert [field for field in ScheduleDefinition.model_fields if field != "name" and f"`{field}`" not in text] == []
