"""The reference run driven by processes that share only the store: each has its own folder."""

from dataclasses import replace
from pathlib import Path

import postgres_scenario
import reference_scenario

from metier.testing.crash_scenario import Reach, Scenario


def build(folder: Path, reach: Reach) -> Scenario:
    return replace(reference_scenario.build(folder, reach), apart=True)


def build_on_postgres(folder: Path, reach: Reach) -> Scenario:
    return replace(postgres_scenario.build(folder, reach), apart=True)
