"""Features that a model does not support: remembered by endpoint, with an expiry."""

import json
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("text", ["", "[]", '{"tools:1": {"noted": 1, "more": ' + '{"a": ' * 100_000])
def test_a_damaged_file_counts_as_empty_and_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoints.json").write_text(text)
    features = FeatureCache(tmp_path, "openai", "http://one", now=lambda: NOTED)

    assert not features.is_unsupported("tools", "m")
    features.mark_unsupported("tools", "m")
    assert [each.model for each in list_unsupported(tmp_path, now=lambda: NOTED)] == ["openai/m"]
