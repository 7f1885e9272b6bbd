"""The settings that a run was started with. Whoever resumes it, from wherever, goes on with these."""

import json
from dataclasses import replace

from pydantic import JsonValue, TypeAdapter

from metier.engine.entries import RunStarted
from metier.runtime.place import Place
from metier.settings.model import Settings

PINNED_SECTIONS = ("model", "runtime", "skills", "shell")
"""What a run does. Where it is written down (`logging`, `store`) is up to whoever resumes it."""

_JSON: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


def pin_settings(settings: Settings) -> dict[str, JsonValue]:
    """Everything that differs from the defaults; never a key, since settings hold none."""
    dumped = settings.model_dump(mode="json", include=set(PINNED_SECTIONS), exclude_defaults=True)
    return _JSON.validate_python(dumped)


def use_pinned(place: Place, started: RunStarted) -> Place:
    """The same place, with the settings of the run."""
    if started.settings is None:
        return place
    pinned = Settings.model_validate_json(json.dumps(started.settings))
    sections = {section: getattr(pinned, section) for section in PINNED_SECTIONS}
    return replace(place, settings=place.settings.model_copy(update=sections))
