"""The built-in tools: their names and costs."""

from pathlib import Path

from metier.context.tokens import TokenCounter
from metier.tools.builtin import build_builtin_tools
from metier.tools.files.scope import Scope
from metier.tools.toolbox import Toolbox

MAX_TOKENS = 1_700


def test_descriptions_of_the_six_tools_are_short(tmp_path: Path) -> None:
    specs = Toolbox(build_builtin_tools(Scope([tmp_path]), environ={})).specs()

    assert [spec.name for spec in specs] == ["Edit", "Glob", "Grep", "Read", "WebFetch", "Write"]
    assert TokenCounter().tools(specs) <= MAX_TOKENS


def test_each_tool_declares_its_risk_and_idempotency(tmp_path: Path) -> None:
    tools = build_builtin_tools(Scope([tmp_path]), environ={})

    assert {tool.info.name: (tool.info.risk, tool.info.effect) for tool in tools} == {
        "Read": ("low", "read"),
        "Glob": ("low", "read"),
        "Grep": ("low", "read"),
        "Write": ("medium", "opaque"),
        "Edit": ("medium", "opaque"),
        "WebFetch": ("medium", "idempotent"),
    }
