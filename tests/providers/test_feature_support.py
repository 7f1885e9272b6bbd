"""Features that a model does not support: remembered by endpoint, with an expiry."""

import json
from pathlib import Path

from metier.providers.feature_support import EXPIRY_SECONDS, FeatureCache, list_unsupported

NOTED = 1_800_000_000.0


def test_a_feature_is_tried_again_after_its_expiry(tmp_path: Path) -> None:
    FeatureCache(tmp_path, "openai", "http://one", now=lambda: NOTED).mark_unsupported("tools", "m")

    def is_unsupported(address: str, *, after: float) -> bool:
        return FeatureCache(tmp_path, "openai", address, now=lambda: NOTED + after).is_unsupported("tools", "m")

    assert is_unsupported("http://one", after=EXPIRY_SECONDS - 1)
    assert not is_unsupported("http://one", after=EXPIRY_SECONDS + 1)
    assert not is_unsupported("http://two", after=0)
    assert [each.model for each in list_unsupported(tmp_path, now=lambda: NOTED)] == ["openai/m"]
    assert list_unsupported(tmp_path, now=lambda: NOTED + EXPIRY_SECONDS + 1) == ()


def test_the_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    features = FeatureCache(tmp_path, "openai", "http://one", now=lambda: NOTED)
    features.mark_unsupported("tools", "m")
    file = tmp_path / "endpoints.json"
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), NOTED)))

    assert FeatureCache(tmp_path, "openai", "http://one", now=lambda: NOTED).is_unsupported("tools", "m")
    assert [(each.feature, each.model) for each in list_unsupported(tmp_path, now=lambda: NOTED)] == [("tools", "")]
