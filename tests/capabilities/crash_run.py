"""A run that calls two skills: one asks and has a keyed effect, the other an unrepeatable effect."""

from pathlib import Path

from capability_skills import write_skill

from metier.providers.options import ModelOptions
from metier.runtime.host import Host
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.crash_kit import read_effects
from metier.testing.crash_scenario import DoubtAnswer, Reach, Scenario

EFFECT = """
import json, os
def execute(context):
    if {asks} and "name" not in context.inputs:
        return {{"state": "input_required", "input_request": {{"missing_fields": [{{"name": "name"}}]}}}}
    line = json.dumps({{"effect": "{effect}", "name": "{name}", "key": context.idempotency_key}})
    with open(context.workspace / "effects.jsonl", "a") as stream:
        stream.write(line + "\\n")
        stream.flush()
        os.fsync(stream.fileno())
    return {{"outputs": {{"summary": "done by {name}"}}}}
"""
ENVIRONMENT = {"AGENT_RESUME_SECRET": "crash-kit-" * 4}
"""Without it the first process makes a key file, whose temporary name is another one each time."""
CONTRACT = """
autonomy_level: implement
side_effects: {{kinds: [writes_files], repeat: {effect}}}
interaction_outcomes: {{allowed_intermediate_states: [input_required]}}
"""


def build(folder: Path, _reach: Reach) -> Scenario:
    for name, effect, asks in (("keeper", "keyed", True), ("launcher", "opaque", False)):
        impl = EFFECT.format(name=name, effect=effect, asks=asks)
        write_skill(folder / "skills", name, contract=CONTRACT.format(effect=effect), impl=impl)
    effects = folder / "effects.jsonl"

    def settle(key: str) -> DoubtAnswer:
        return "done" if any(done["key"].startswith(key) for done in read_effects(effects)) else "retry"

    settings = Settings(model=ModelOptions(provider="offline"))
    host = Host(trust=MADE_HERE, settings=settings, workspace=folder, home=folder / "home", environ=ENVIRONMENT)
    return Scenario(
        host=host,
        task="First use the skill keeper, then use the skill launcher",
        effects=effects,
        settle=settle,
        answer=lambda _question: {"name": "Ada"},
    )
