"""A run whose skill delegates to another one, which asks and has an unrepeatable effect."""

from pathlib import Path

from capability_skills import write_skill

from metier.providers.options import ModelOptions
from metier.runtime.host import Host
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.crash_kit import read_effects
from metier.testing.crash_scenario import DoubtAnswer, Reach, Scenario

ENVIRONMENT = {"AGENT_RESUME_SECRET": "crash-kit-" * 4}
PARENT_CONTRACT = """
autonomy_level: implement
interaction_outcomes: {allowed_intermediate_states: [delegating]}
depends_on: [builder]
"""
PARENT = """
def execute(context):
    if context.delegated is None:
        return {"state": "delegating", "delegation": {"skill": "builder", "inputs": {"count": 2}}}
    return {"outputs": {"summary": "built: " + str(context.delegated["outputs"])}}
"""
CHILD_CONTRACT = """
autonomy_level: implement
side_effects: {kinds: [writes_files], repeat: opaque}
interaction_outcomes: {allowed_intermediate_states: [input_required]}
"""
CHILD = """
import json, os
def execute(context):
    if "name" not in context.inputs:
        return {"state": "input_required", "input_request": {"missing_fields": [{"name": "name"}]}}
    line = json.dumps({"effect": "opaque", "name": "builder", "key": context.idempotency_key})
    with open(context.workspace / "effects.jsonl", "a") as stream:
        stream.write(line + "\\n")
        stream.flush()
        os.fsync(stream.fileno())
    return {"outputs": {"made": [context.inputs["name"]] * context.inputs["count"]}}
"""


def build(folder: Path, _reach: Reach) -> Scenario:
    write_skill(folder / "skills", "planner", contract=PARENT_CONTRACT, impl=PARENT)
    write_skill(folder / "skills", "builder", contract=CHILD_CONTRACT, impl=CHILD)
    effects = folder / "effects.jsonl"

    def settle(key: str) -> DoubtAnswer:
        return "done" if any(done["key"].startswith(key) for done in read_effects(effects)) else "retry"

    settings = Settings(model=ModelOptions(provider="offline"))
    return Scenario(
        host=Host(trust=MADE_HERE, settings=settings, workspace=folder, home=folder / "home", environ=ENVIRONMENT),
        task="Use the skill planner",
        effects=effects,
        settle=settle,
        answer=lambda _question: {"name": "Ada"},
    )
