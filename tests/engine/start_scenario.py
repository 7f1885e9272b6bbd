"""A run started with flags and continued with different settings."""

import json
from dataclasses import replace
from pathlib import Path

from postgres_scenario import open_pointed_postgres
from reference_scenario import Call, Narrator, make_workspace

from metier.engine.options import RuntimeOptions
from metier.providers.options import ModelOptions
from metier.runtime.host import Host
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.crash_scenario import Reach, Scenario
from metier.testing.recorded_effect import RecordedEffect, build_settle

GIVEN = Settings(
    model=ModelOptions(provider="openai", name="special"), runtime=RuntimeOptions(profile="guarded", max_turns=3)
)
"""As `agent run --profile guarded --max-turns 3 --model special` gives them."""
TODAY = Settings(
    model=ModelOptions(provider="openai", name="plain"), runtime=RuntimeOptions(profile="permissive", max_turns=30)
)
LINES: list[list[Call]] = [[("launch", {})], [("finish", {"result": "Done."})]]
LIVES = "lives"


def build(folder: Path, reach: Reach) -> Scenario:
    """Build the host: the first process has the flags, later ones the current settings."""
    effects = folder / "effects.jsonl"
    lives = folder / LIVES
    count = int(lives.read_text()) if lives.exists() else 0
    lives.write_text(str(count + 1))
    host = Host(
        trust=MADE_HERE,
        settings=TODAY if count else GIVEN,
        workspace=make_workspace(folder),
        home=folder / "home",
        environ={},
        provider=Narrator(LINES),
        tools=(RecordedEffect("launch", "opaque", effects, reach),),
    )
    return Scenario(
        host=host,
        task="Launch it",
        extra_context="piped: 12 apples",
        effects=effects,
        settle=build_settle(effects),
    )


def build_on_postgres(folder: Path, reach: Reach) -> Scenario:
    return replace(build(folder, reach), open_store=open_pointed_postgres)


def describe(settings: Settings) -> str:
    """Return the settings in a run's first entry."""
    runtime = settings.runtime
    return json.dumps([settings.model.name, runtime.profile, runtime.max_turns])
