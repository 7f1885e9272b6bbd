"""Provoke every message that `docs/troubleshooting.md` quotes."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from model_server import ModelServer, Reply, calls, fails, running_model, says
from run_workspace import QUICK, Workspace, use_model
from walkthrough import Reader, matches

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
QUOTES = re.findall(r"^> `(.*)`$", PAGE.read_text("utf-8"), re.MULTILINE)
PLAYED_ELSEWHERE = {
    "The disk of the run store is full; free some space, then resume": "engine/test_run_faults.py",
}
"""Messages that need more than a folder, and the tests that provoke them."""


class Symptom(NamedTuple):
    words: str
    """Words that identify the quote."""
    replies: tuple[Reply, ...]
    command: tuple[str, ...]
    exit_code: int
    model: Mapping[str, object] = MappingProxyType({})


TALK = says("hello")
LOOK = calls("Glob", pattern="*")
SYMPTOMS = (
    Symptom("has no API key", (TALK,), ("run", "hi", "--provider", "anthropic", "--model", "claude-sonnet-4-5"), 8),
    Symptom("no_skill", (TALK,), ("run", "hi", "--provider", "offline"), 1),
    Symptom("is one of 'anthropic'", (TALK,), ("run", "hi", "--provider", "gemini", "--model", "claude-sonnet-4-5"), 2),
    Symptom("The price of model", (TALK,), ("run", "hi", "--max-cost-usd", "1"), 2),
    Symptom("prompt_too_large", (TALK,), ("run", "word " * 4000), 6, {"max_context_tokens": 4000}),
    Symptom("rate_limited", (fails(429),), ("run", "hi"), 8),
    Symptom("auth_failed", (fails(401),), ("run", "hi"), 8),
    Symptom("not_found", (fails(404),), ("run", "hi"), 8),
    Symptom("decision_invalid", (says(""),), ("run", "hi"), 1),
    Symptom("truncated", (Reply(text="abc", finish="length"),), ("run", "hi"), 1),
    Symptom("refusal", (Reply(text="no", finish="content_filter"),), ("run", "hi"), 1),
    Symptom("max_turns_exceeded", (LOOK,), ("run", "hi", "--max-turns", "2"), 7),
    Symptom("run_timeout", (calls("Bash", command="sleep 60"),), ("run", "hi", "--timeout", "1"), 7),
    Symptom("budget_exceeded", (LOOK,), ("run", "hi", "--max-cost-usd", "0.0001"), 6, {"name": "gpt-5.6-luna"}),
)


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with running_model() as running:
        yield running


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelServer) -> Workspace:
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "AGENT_SKILLS"):
        monkeypatch.delenv(name, raising=False)
    made = Workspace(folder)
    made.configure(model=use_model(model), runtime=QUICK)
    return made


def is_quoted(words: str, printed: str, tmp_path: Path) -> bool:
    (quote,) = (quote for quote in QUOTES if words in quote)
    return matches(quote, printed, Reader(tmp_path, tmp_path))


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.words)
def test_message_and_exit_code_match_the_page(
    symptom: Symptom, workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model.follow(*symptom.replies)
    workspace.configure(model={**use_model(model), **symptom.model}, runtime=QUICK)

    assert workspace.agent(*symptom.command) == symptom.exit_code

    printed = capsys.readouterr().err
    assert is_quoted(symptom.words, printed, tmp_path), printed
    (quote,) = (quote for quote in QUOTES if symptom.words in quote)
    told = re.search(r"Exit codes? ([\d, and]+)\.", PAGE.read_text("utf-8").partition(quote)[2])
    assert told is not None
    assert str(symptom.exit_code) in re.findall(r"\d+", told[1])


def test_a_run_driven_by_another_process_is_reported_as_on_the_page(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model.follow(TALK)
    model.silent.set()
    with workspace.start("run", "hi") as driver:
        try:
            assert model.asked.wait(60)

            assert workspace.agent("resume", "latest") == 10
        finally:
            driver.kill()
            model.released.set()
    assert is_quoted("drives run", capsys.readouterr().err, tmp_path)


def test_a_damaged_line_of_a_log_is_reported_as_on_the_page(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model.follow(TALK)
    assert workspace.agent("run", "hi", "--quiet") == 0
    log = workspace.folder / "runs" / workspace.run_ids()[-1] / "events.jsonl"
    lines = log.read_text("utf-8").splitlines(keepends=True)
    log.write_text("".join([lines[0], "{damaged\n", *lines[2:]]), "utf-8")

    assert workspace.agent("replay", "latest", "--event-stream") == 1

    assert is_quoted("is damaged", capsys.readouterr().err, tmp_path)


def test_every_quoted_message_of_the_page_is_produced() -> None:
    played = [symptom.words for symptom in SYMPTOMS] + ["drives run", "is damaged"]

    assert [quote for quote in QUOTES if not any(words in quote for words in played)] == list(PLAYED_ELSEWHERE)
    for quote, test in PLAYED_ELSEWHERE.items():
        assert quote.partition(";")[0] in (Path(__file__).parents[1] / test).read_text("utf-8")
