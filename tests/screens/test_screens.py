"""Screens at a real terminal, as text: a run, a failure, an interrupted reply, a resumed run."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_server import ModelServer, running_model, says
from scenes import SCENES, SIZES, Place, prepare

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="screens are taken with tmux")


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with running_model() as running:
        yield running


def make_host(tmp_path: Path, model: ModelServer, size: tuple[int, int]) -> Place:
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    prepare(folder, model.url)
    environment = {**os.environ, "HOME": str(home), "OPENAI_API_KEY": "k" * 12}
    return Place(folder, model, environment, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", SCENES)
def test_screen_matches_its_snapshot(scene: str, size: str, tmp_path: Path, model: ModelServer) -> None:
    kept = HERE / f"{scene}-{size}.txt"

    shown = SCENES[scene](make_host(tmp_path, model, SIZES[size])).plain + "\n"

    if os.environ.get("METIER_KEEP_SCREENS"):
        kept.write_text(shown, encoding="utf-8")
    assert shown == kept.read_text(encoding="utf-8")
    assert max(map(len, shown.splitlines())) <= SIZES[size][0]


def test_first_characters_are_shown_before_more_arrives(tmp_path: Path, model: ModelServer) -> None:
    """The reply stops in the middle of its first word."""
    place = make_host(tmp_path, model, (80, 24))
    model.follow(says("Hel"))
    model.halting.set()

    with place.open("run", "Greet") as terminal:
        assert model.asked.wait(60)
        terminal.wait_for("Hel")
        terminal.type("C-c")
    model.released.set()


def test_resize_during_a_reply_leaves_one_copy_of_it(tmp_path: Path, model: ModelServer) -> None:
    place = make_host(tmp_path, model, (100, 30))
    model.follow(says("The quick brown fox jumps over the lazy dog and goes on and on until the line is full. " * 2))
    model.halting.set()

    with place.open("run", "Greet") as terminal:
        terminal.wait_for("until the line is full")
        terminal.resize(40, 24)
        terminal.wait_for("lazy")
        terminal.type("C-c")
        shown = terminal.wait_for("resume")
        model.halting.clear()
        model.released.set()

    assert max(map(len, shown.splitlines())) <= 40
