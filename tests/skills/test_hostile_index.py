"""A foreign skill index may only name git repositories at a commit."""

import json
from pathlib import Path

import pytest

from metier.errors import MetierError
from metier.skills.install.offers import read_index
from metier.skills.source import GitSource

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GOOD = {"name": "notes", "description": "Notes.", "source": "https://git.example/notes.git", "commit": COMMIT}


@pytest.mark.parametrize(
    "changed",
    [
        {"source": "file:///home/kim/private"},
        {"source": "/home/kim/private"},
        {"source": "../private"},
        {"source": "~/private"},
        {"source": "ext::sh -c touch% made"},
        {"source": "fd::17"},
        {"source": "git://git.example/notes.git"},
        {"source": "-u./made"},
        {"source": "--upload-pack=touch made"},
        {"source": "ssh://-oProxyCommand=touch/x.git"},
        {"source": "git@-oProxyCommand=touch:x.git"},
        {"source": "https://git.example/notes.git@main"},
        {"source": "https://git.example/notes.git#../.."},
        {"source": "https://git.example/notes.git\n--upload-pack=x"},
        {"source": ""},
        {"source": "mcp:server/skill"},
        {"subdir": "../other"},
        {"subdir": "/etc"},
        {"subdir": "a/../../b"},
        {"subdir": "a\x00b"},
        {"commit": "main"},
        {"commit": COMMIT[:12]},
        {"commit": f"{COMMIT}\n"},
        {"commit": "--help"},
        {"name": "../notes"},
        {"name": "notes\x1b[2J"},
        {"name": "n" * 65},
        {"description": "x" * 5_000},
        {"extra": "x"},
    ],
)
def test_invalid_index_row_is_skipped(tmp_path: Path, changed: dict[str, str]) -> None:
    file = tmp_path / "skills-index.json"
    other = {**GOOD, "name": "other"}
    file.write_text(json.dumps({"skills": [{**GOOD, **changed}, [], other]}))

    reading = read_index(file, allow_file=False)

    assert [offer.name for offer in reading.offers] == ["other"]
    assert [problem.partition(":")[0] for problem in reading.problems] == [
        "Entry 0 is skipped",
        "Entry 1 is skipped",
    ]


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "[]", '{"skills": {}}', "\x00", '{"skills":'])
def test_file_that_is_not_an_index_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "skills-index.json"
    file.write_text(text)

    with pytest.raises(MetierError):
        read_index(file, allow_file=False)


def test_valid_row_is_pinned_to_its_commit(tmp_path: Path) -> None:
    file = tmp_path / "skills-index.json"
    file.write_text(json.dumps({"skills": [GOOD]}))

    (offer,) = read_index(file, allow_file=False).offers

    assert isinstance(offer.source, GitSource)
    assert (offer.source.url, offer.source.ref) == (GOOD["source"], COMMIT)
