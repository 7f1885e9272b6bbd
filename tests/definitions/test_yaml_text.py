"""YAML is read as text."""

import pytest

from metier.definitions.text.yaml_text import Mapping, Scalar, read_yaml


@pytest.mark.parametrize("word", ["yes", "on", "null", "~", "1.0", "0x1f", "2024-01-01", "true", "1e3", "12:30:45"])
def test_words_that_yaml_would_convert_stay_strings(word: str) -> None:
    document = read_yaml(f"name: {word}\n")

    assert isinstance(document.root, Mapping)
    value = document.root.entries[0].value
    assert isinstance(value, Scalar)
    assert value.value == word
