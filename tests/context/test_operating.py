"""Built-in texts for models: complete, short, and changed only on purpose.

The expected texts are files in `tests/fixtures/prompt_snapshots/`. To update them after an intended change, run this
file with `UPDATE_SNAPSHOTS=1`, then read the diff.
"""

import json
import os
from pathlib import Path

import pytest

from metier.context.control import build_control_specs
from metier.context.operating import FILE_TOOLS, Family, Subjects, build_operating, get_family
from metier.context.tokens import estimate_tokens, tool_tokens
from metier.messages import ToolSpec
from metier.prompts.texts import load_text, load_tool_text
from metier.tools.files.edit import Edit, Write
from metier.tools.files.glob import Glob
from metier.tools.files.grep import Grep
from metier.tools.files.read import Read
from metier.tools.scripts.script_tools import ScriptHelp, ScriptList, ScriptRun
from metier.tools.shell.bash import Bash
from metier.tools.web.web_fetch import WebFetch
from metier.tools.web.web_search import WebSearch

SNAPSHOTS = Path(__file__).parent.parent / "fixtures" / "prompt_snapshots"
PROMPTS = Path(__file__).parent.parent.parent / "src" / "metier" / "prompts"
FAMILIES: tuple[Family, ...] = ("claude", "gpt", "gemini", "open")
EVERYTHING = Subjects(tools=FILE_TOOLS, has_skills=True, has_partners=True)
BUILT_IN = tuple(
    ToolSpec(name=tool.info.name, description=tool.info.description, input_schema=tool.info.input_schema)
    for tool in (Read, Write, Edit, Glob, Grep, Bash, WebFetch, WebSearch, ScriptList, ScriptHelp, ScriptRun)
)


def render_tools() -> str:
    specs = (*build_control_specs(), *BUILT_IN)
    return "\n\n".join(
        f"# {spec.name}\n{spec.description}\n{json.dumps(spec.input_schema, ensure_ascii=False, indent=1)}"
        for spec in specs
    )


@pytest.mark.parametrize("name", [*FAMILIES, "tools"])
def test_texts_for_models_match_their_snapshots(name: str) -> None:
    text = render_tools() if name == "tools" else build_operating(EVERYTHING, name)  # pyright: ignore[reportArgumentType]
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOTS.mkdir(exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")

    assert file.read_text(encoding="utf-8") == text + "\n"


@pytest.mark.parametrize("family", FAMILIES)
def test_operating_instructions_have_at_most_seven_hundred_tokens(family: Family) -> None:
    assert estimate_tokens(build_operating(EVERYTHING, family)) <= 700


@pytest.mark.parametrize("family", FAMILIES)
def test_built_in_set_costs_at_most_four_thousand_tokens(family: Family) -> None:
    texts = estimate_tokens(build_operating(EVERYTHING, family)) + estimate_tokens(load_text("safety"))
    tools = sum(map(tool_tokens, (*build_control_specs(), *BUILT_IN)))

    assert texts + tools <= 4_000


def test_every_tool_has_a_text_and_every_text_a_tool() -> None:
    specs = (*build_control_specs(), *BUILT_IN)

    assert {file.stem for file in (PROMPTS / "tools").glob("*.md")} == {spec.name for spec in specs}
    for spec in specs:
        properties = spec.input_schema["properties"]
        assert isinstance(properties, dict)
        described = {name.partition(".")[0] for name in load_tool_text(spec.name).parameters}
        assert described <= set(properties), spec.name


def test_every_parameter_has_the_description_that_was_written_for_it() -> None:
    for spec in (*build_control_specs(), *BUILT_IN):
        properties = spec.input_schema["properties"]
        assert isinstance(properties, dict)
        for name, text in load_tool_text(spec.name).parameters.items():
            parameter = properties[name.partition(".")[0]]
            assert isinstance(parameter, dict)
            assert "." in name or parameter["description"] == text, f"{spec.name}: {name}"


def test_subject_without_tools_in_the_run_is_omitted() -> None:
    bare = build_operating(Subjects(tools={"Read"}), "")

    assert "## How you work" in bare
    for title in ("## Skills", "## Files and commands", "## Delegation"):
        assert title not in bare
        assert title in build_operating(EVERYTHING, "")


@pytest.mark.parametrize(
    ("provider", "model", "family"),
    [
        ("anthropic", "claude-sonnet-4-5", "claude"),
        ("openai", "anthropic/claude-opus-4", "claude"),
        ("openai", "gpt-5.5", "gpt"),
        ("openai", "o4-mini", "gpt"),
        ("openai", "gpt-oss-20b", "open"),
        ("openai", "qwen3-coder", "open"),
        ("gemini", "gemini-3-pro", "gemini"),
        ("gemini", "tuned", "gemini"),
        ("offline", "offline", ""),
    ],
)
def test_family_depends_on_the_model_and_not_the_provider(provider: str, model: str, family: Family) -> None:
    assert get_family(provider, model) == family
