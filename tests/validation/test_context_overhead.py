"""The tokens of sent requests: messages and tool descriptors of complete runs, counted by a real tokenizer."""

import gzip
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, calls, running_model
from pydantic import JsonValue
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from vendor_servers import KEYS, VENDORS, running_vendors

from metier.cli.main import run
from metier.definitions.skills.sources import get_bundled_folder

MERGES = Path(__file__).parent.parent / "fixtures" / "tokenizer" / "smollm2-merges.txt.gz"
TASK = "Is the exchange open? Then greet everybody."
SENT = ("system", "systemInstruction", "messages", "contents", "tools")
"""The parts of a body that a model reads; the rest are options of the server."""
BOTH = "kalshi-markets,hello-extended"


@cache
def load_tokenizer() -> Tokenizer:
    lines = gzip.decompress(MERGES.read_bytes()).decode().splitlines()
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    pieces = [*sorted(ByteLevel.alphabet()), *(first + second for first, second in merges)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return tokenizer


def count_tokens(body: Mapping[str, Any]) -> int:
    """Count tokens with braces, quotes and keys, as an upper bound for every vendor."""
    sent = {key: value for key, value in body.items() if key in SENT}
    text = json.dumps(sent, ensure_ascii=False, separators=(",", ":"))
    # The path of the test's folder is as long as the machine makes it.
    return len(load_tokenizer().encode(text.replace(str(Path.cwd()), "/home/user/project")).ids)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in KEYS.values():
        monkeypatch.setenv(variable, "k" * 12)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("skills", "limit"), [("none", 2_000), ("kalshi-markets", 3_000), (BOTH, 5_000)])
@pytest.mark.parametrize("vendor", VENDORS)
def test_first_request_stays_below_the_limit(
    *, vendor: str, skills: str, limit: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SKILLS", skills)
    with running_vendors() as vendors:
        settings = {"provider": vendor, "name": "m", "providers": vendors.settings()}
        (folder / "agent.yaml").write_text(json.dumps({"model": settings}), encoding="utf-8")

        assert run(["run", "-q", TASK]) == 0

    [body] = vendors[vendor].bodies
    assert len(body["tools"]) > 0
    assert count_tokens(body) < limit


# The body of the skill is in this request. Vendors' tokenizers have larger vocabularies than this one and count less.
@pytest.mark.parametrize(("skills", "limit"), [("kalshi-markets", 3_300), (BOTH, 5_000)])
def test_request_with_skills_disclosed_stays_below_the_limit(
    *, skills: str, limit: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count_tokens(use_skills(skills, folder, monkeypatch)[-1]) < limit


def test_no_line_of_a_script_is_ever_in_a_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = "\n".join(_texts(body) for body in use_skills(BOTH, folder, monkeypatch))
    said = "\n".join(file.read_text() for file in get_bundled_folder().glob("*/SKILL.md"))
    code = [
        line.strip()
        for pattern in ("kalshi-markets/scripts/*.py", "hello-extended/*/*.py")
        for file in get_bundled_folder().glob(pattern)
        for line in file.read_text().splitlines()
    ]

    # Short lines (`try:`, `)`) are words of any text; a line that the instructions quote is theirs to show.
    lines = {line for line in code if len(line) > 15 and line not in said}
    assert len(lines) > 500
    assert [line for line in lines if line in sent] == []


def use_skills(skills: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the request bodies of a run in which the model activates the skills one by one."""
    monkeypatch.setenv("AGENT_SKILLS", skills)
    script = (*(calls("use_skill", skill=name) for name in skills.split(",")), calls("finish", result="Done"))
    with running_model(ModelServer(script=list(script))) as model:
        settings = {"provider": "openai", "name": "m", "providers": {"openai": {"base_url": model.url}}}
        (folder / "agent.yaml").write_text(json.dumps({"model": settings}), encoding="utf-8")
        assert run(["run", "-q", TASK]) == 0
    assert len(model.received) == len(script)
    return model.received


def _texts(value: JsonValue) -> str:
    """Return every text in a body from the model's view."""
    match value:
        case str():
            return value
        case list():
            return "\n".join(map(_texts, value))
        case dict():
            return "\n".join(map(_texts, value.values()))
        case _:
            return ""
