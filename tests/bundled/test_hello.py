"""The hello-extended skill: its script, and its toolset if the base class is available."""

import importlib.util
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, cast

import anyio
import pytest

import metier


class Outcome(Protocol):
    """The outcome of a script; `result` is the JSON object on standard output."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]: ...


class Run(Protocol):
    def __call__(self, skill: str, script: str, *arguments: str | Path) -> Outcome: ...


TOOLSET = Path(metier.__file__).parent / "bundled" / "hello-extended" / "toolsets" / "hello.py"


@pytest.mark.parametrize(
    ("arguments", "greeting"),
    [
        (["2025-03-01T08:30"], "Good morning, Ada!"),
        (["2025-03-01T12:00", "--tone", "formal"], "Good afternoon, Ada."),
        (["2025-03-01T18:00", "--occasion", "birthday"], "Good evening, Ada! Happy birthday!"),
        (["2025-03-01T02:00", "--tone", "casual", "--note", "Sleep well."], "Hey, still up, Ada! Sleep well."),
        (["2025-03-01T23:30+00:00", "--zone", "Asia/Tokyo"], "Good morning, Ada!"),
    ],
)
def test_a_greeting_matches_time_tone_and_occasion(run: Run, arguments: list[str], greeting: str) -> None:
    call = ("hello-extended", "advanced_greeting", "--name", "Ada", "--time", *arguments)
    assert run(*call, "--json").result["summary"] == greeting
    assert run(*call).out == greeting + "\n"


@pytest.mark.parametrize("arguments", [["--time", "noon"], ["--zone", "Nowhere/Town"], ["--zone", "../etc"]])
def test_an_invalid_time_or_zone_prints_a_message(run: Run, arguments: list[str]) -> None:
    outcome = run("hello-extended", "advanced_greeting", *arguments, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert arguments[1] in outcome.err
    assert "Traceback" not in outcome.err


class Hello(Protocol):
    """The tools of the toolset, from the caller's view."""

    def get_tools(self) -> list[FunctionType]: ...
    async def greet_in_language(self, name: str, language: str = "en") -> dict[str, Any]: ...
    async def greet_multiple(self, names: list[str], language: str = "en") -> dict[str, Any]: ...
    async def list_languages(self) -> dict[str, Any]: ...


def load_toolset() -> Hello:
    spec = importlib.util.spec_from_file_location("hello_of_this_test", TOOLSET)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Hello", module.HelloExtended())


def test_tools_greet_in_many_languages() -> None:
    toolset = load_toolset()
    assert [tool.__name__ for tool in toolset.get_tools()] == ["greet_in_language", "greet_multiple", "list_languages"]
    for language in ("de", "DE", "de-AT", "German", "german"):
        assert anyio.run(partial(toolset.greet_in_language, name="Ada", language=language))["result"] == "Hallo Ada!"
    both = anyio.run(partial(toolset.greet_multiple, names=["Ada", "Bob"], language="fr"))
    assert both["success"] is True
    assert both["result"] == ["Bonjour Ada !", "Bonjour Bob !"]
    assert len(anyio.run(toolset.list_languages)["result"]) >= 15


@pytest.mark.parametrize(("name", "language"), [("Ada", "Klingon"), (" ", "en"), ("x" * 201, "en")])
def test_tools_answer_an_invalid_request_with_an_error(name: str, language: str) -> None:
    toolset = load_toolset()
    assert anyio.run(partial(toolset.greet_in_language, name=name, language=language))["success"] is False
    assert anyio.run(partial(toolset.greet_multiple, names=["Ada", name], language=language))["success"] is False
