"""A workspace with the task names that the MCP conformance suite calls, and a model that obeys them."""

import base64
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, override

from model_server import ModelServer, Reply, calls, fails, running_model, says
from pictures import build_png
from run_workspace import QUICK, Workspace, use_model

TASK = """---
name: {name}
description: {description}
{extra}---

{body}
"""
INPUTS = "inputs:\n{items}"
OPTIONAL = "  - name: filename\n    default: none\n  - name: message\n    default: none\n"
_WORD = re.compile(r"DO: (\w+)(?: ([\w.-]+))?")


TEXT = {"type": "string"}
CHOICES = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
FORMS: dict[str, list[dict[str, object]]] = {
    "name": [{"name": TEXT}],
    "confirm": [{"confirm": {"type": "boolean"}}],
    "ok": [{"ok": {"type": "boolean"}}],
    "user": [{"username": TEXT, "email": TEXT}],
    "rounds": [{"name": TEXT}, {"color": TEXT}],
    "defaults": [
        {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
    ],
    "enums": [
        {
            "untitledSingle": {"type": "string", "enum": CHOICES},
            "titledSingle": {"type": "string", "oneOf": TITLED},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": CHOICES}},
            "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
        }
    ],
}
"""Fields of a task's questions, by the name of the form."""
ASKING = {
    "confirm_delete": "confirm",
    "test_elicitation": "user",
    "test_elicitation_sep1034_defaults": "defaults",
    "test_elicitation_sep1330_enums": "enums",
    "test_input_required_result_elicitation": "name",
    "test_input_required_result_request_state": "ok",
    "test_input_required_result_tampered_state": "ok",
    "test_input_required_result_multi_round": "rounds",
}
"""The tools of the suite that ask, with their forms."""


CONTENTS = {
    each: base64.b64encode(data).decode()
    for each, data in {"a.png": build_png(1, 1), "a.wav": b"RIFF\x00\x00\x00\x00WAVE", "a.txt": b"A short text"}.items()
}
MAKE = f"""import base64, sys
from pathlib import Path

# The artifacts of the run that asks: the newest.
runs = (Path(__file__).parents[3] / "runs").glob("child-*")
folder = max(runs, key=lambda each: each.stat().st_mtime_ns) / "artifacts"
folder.mkdir(exist_ok=True)
for name in sys.argv[1:]:
    (folder / name).write_bytes(base64.b64decode({CONTENTS!r}[name]))
"""
FILES = {
    "test_image_content": "a.png",
    "test_audio_content": "a.wav",
    "test_embedded_resource": "a.txt",
    "test_multiple_content_types": "a.png-a.txt",
}
"""The tools of the suite whose result holds files, with their names."""


def _build_schema(properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": [*properties]}


class ObedientModel(ModelServer):
    """A model that executes the line `DO: …` of a task."""

    @override
    def next(self, body: dict[str, Any]) -> Reply:
        self.received.append(body)
        text = json.dumps(body["messages"])
        word, value = _WORD.findall(text)[-1]
        match word:
            case "greet":
                return says(f"Hello, {value}!")
            case "wait":
                self.released.wait(float(value))
                return says(f"Computed for {value} seconds")
            case "refuse":
                return fails(401)
            case "prose":
                return says("this is not JSON")
            case "ask":
                # One question for each form of the list, one after the other.
                answered = text.count('"role": "tool"')
                forms = FORMS[value]
                if answered >= len(forms):
                    return says("Asked and answered, state-ok")
                return calls("ask_user", question="What do you say?", fields=_build_schema(forms[answered]))
            case "make":
                if '"role": "tool"' in text:
                    return says("Made")
                return calls("script_run", skill_name="maker", script_name="make", args=value.split("-"))
            case "look":
                return calls("Glob", pattern="*") if text.count('"role": "tool"') < 3 else says("Looked three times")
            case _:
                return says(value)


def write_task(workspace: Workspace, name: str, body: str, *, inputs: str = "", extra: str = "") -> None:
    items = "".join(f"  - name: {each}\n    description: A value\n" for each in inputs.split())
    header = extra + (INPUTS.format(items=items) if items else "")
    text = TASK.format(name=name, description=f"A tool called {name}", extra=header, body=body)
    workspace.write(f".agent/tasks/{name}/TASK.md", text)


def write_workspace(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK)
    always, never = "metadata:\n  mcp_task: required\n", "metadata:\n  mcp_task: never\n"
    write_task(workspace, "greet", "DO: greet {{inputs.name}}", inputs="name", extra=never)
    write_task(workspace, "test_simple_text", "DO: say This_is_a_simple_text_response_for_testing.", extra=never)
    seconds = "inputs:\n  - name: seconds\n    schema:\n      type: number\n  - name: label\n    default: none\n"
    write_task(workspace, "slow_compute", "DO: wait {{inputs.seconds}}", extra=seconds)
    schema = "output_schema:\n  type: object\n"
    write_task(workspace, "failing_job", "DO: prose", extra=always + schema)
    write_task(workspace, "test_error_handling", "DO: prose", extra=never + schema)
    write_task(workspace, "protocol_error_job", "DO: refuse", extra=always)
    for name, form in ASKING.items():
        support = "" if name == "confirm_delete" else never
        write_task(workspace, name, f"DO: ask {form}", extra=f"{support}inputs:\n{OPTIONAL}")
    region = "inputs:\n  - name: region\n    schema:\n      type: string\n      x-mcp-header: Region\n"
    write_task(workspace, "test_header", "DO: greet {{inputs.region}}", extra=never + region)
    workspace.add_skill("maker", "Make files.", make=MAKE)
    allowed = "tool_approvals:\n  rules:\n    - {tool: script_run, allow: true}\n"
    for name, files in FILES.items():
        write_task(workspace, name, f"DO: make {files}", extra=never + allowed)
    write_task(workspace, "test_missing_capability", "DO: say nothing", extra=always)
    write_task(workspace, "test_tool_with_progress", "DO: look around", extra=never)
    skill = workspace.add_skill("weather", "Tell the weather of a city, with a script.", look="print('sunny')\n")
    (skill / "references" / "cities").mkdir(parents=True)
    (skill / "references" / "cities" / "north.md").write_text("# North\n", encoding="utf-8")
    workspace.add_skill("tides", "Tell when the tide comes.", tide="print('at noon')\n")
    workspace.write(".agent/agents/test_simple_prompt/AGENT.md", "---\nname: Simple\n---\n\nThis is a simple prompt.\n")


def write_untimed_tasks(workspace: Workspace) -> None:
    """Add tools with a half-second limit in the suite, for a test that waits longer."""
    write_task(workspace, "test_logging_tool", "DO: say logged", extra="metadata:\n  mcp_task: never\n")
    write_task(workspace, "test_streaming_elicitation", "DO: ask ok", extra="metadata:\n  mcp_task: never\n")


@contextmanager
def conforming_workspace(folder: Path) -> Generator[Workspace]:
    with running_model(ObedientModel()) as model:
        workspace = Workspace(folder)
        write_workspace(workspace, model)
        yield workspace
