"""Features that a model does not support: remembered by endpoint, with an expiry."""

import json
from pathlib import Path

from metier.providers.abilities import EXPIRY_SECONDS, RememberedLacks, list_unsupported

NOTED = 1_800_000_000.0


def test_a_feature_is_tried_again_after_its_expiry(tmp_path: Path) -> None:
    RememberedLacks(tmp_path, "openai", "http://one", now=lambda: NOTED).note_lack("tools", "m")

    def lacks(address: str, *, after: float) -> bool:
        return RememberedLacks(tmp_path, "openai", address, now=lambda: NOTED + after).lacks("tools", "m")

    assert lacks("http://one", after=EXPIRY_SECONDS - 1)
    assert not lacks("http://one", after=EXPIRY_SECONDS + 1)
    assert not lacks("http://two", after=0)
    assert [each.model for each in list_unsupported(tmp_path, now=lambda: NOTED)] == ["openai/m"]
    assert list_unsupported(tmp_path, now=lambda: NOTED + EXPIRY_SECONDS + 1) == ()


def test_the_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    lacks = RememberedLacks(tmp_path, "openai", "http://one", now=lambda: NOTED)
    lacks.note_lack("tools", "m")
    file = tmp_path / "endpoints.json"
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), NOTED)))

    assert RememberedLacks(tmp_path, "openai", "http://one", now=lambda: NOTED).lacks("tools", "m")
    assert [(each.ability, each.model) for each in list_unsupported(tmp_path, now=lambda: NOTED)] == [("tools", "")]
