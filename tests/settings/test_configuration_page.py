"""The examples of `docs/configuration.md` are true."""

import re
from pathlib import Path

import pytest

from metier.cli.main import run
from metier.settings.keys import OLDER_NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_file_is_valid(example: str, place: Path) -> None:
    (place / "agent.yaml").write_text(example, encoding="utf-8")

    assert run(["config", "validate"]) == 0


def test_the_error_on_the_page_matches_the_command(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "agent.yaml").write_text("model:\n  provider: antropic\n  nmae: x\n", encoding="utf-8")
    monkeypatch.setenv("AGENT_RUNTIME_MAX_TURNS", "0")

    assert run(["config", "validate"]) == 2
    assert f"$ agent config validate\n{capsys.readouterr().err}```" in PAGE


def test_every_older_name_is_on_the_page() -> None:
    assert all(f"| `{older}` | `{key}` |" in PAGE for key, older in OLDER_NAMES.items())


def test_every_problem_code_is_on_the_page() -> None:
    room = Path(__file__).parents[2] / "src" / "metier" / "settings"
    source = "".join(path.read_text(encoding="utf-8") for path in room.glob("*.py"))

    codes = set(re.findall(r'(?:report|_refuse)\(\s*(?:file, )?"(\w+)"|code="(\w+)"', source))

    names = {name for pair in codes for name in pair if name}
    assert len(names) > 10
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE and not name.startswith("yaml_")] == []
