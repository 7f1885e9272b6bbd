"""The page on schedules, typed in by a reader; and its example of a file is right."""

import re
from pathlib import Path

from walkthrough import Reader, read_through

from metier.definitions.schedule import ScheduleDefinition, parse_schedules

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"


def test_every_command_of_the_page_works_and_shows_what_the_page_says(tmp_path: Path) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    (folder / "agent.yaml").write_text("model: {provider: offline}\n", encoding="utf-8")

    assert read_through(PAGE, Reader(folder, home, exported={"AGENT_WORKER_AUTOSTART": "false"})) >= 8


def test_the_example_of_a_file_is_right_and_every_field_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)

    found = parse_schedules(example.encode(), file="schedules.yaml")

    assert found.problems == ()
    assert [schedule.name for schedule in found.schedules] == ["stock", "review"]
    assert [field for field in ScheduleDefinition.model_fields if field != "name" and f"`{field}`" not in text] == []
