"""Python functions as tools: the schema that the model gets, and the effects of a call."""

import threading
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import anyio
import pytest
from pydantic import BaseModel, Field, JsonValue

import metier
from metier.tools.base import ToolResult
from metier.tools.function_tool import as_tool
from metier.tools.toolbox import Toolbox

pytestmark = pytest.mark.anyio


class Address(BaseModel):
    street: str
    number: int = 1


@dataclass
class Parcel:
    to: Address
    sent: date


async def call(tool: object, context: metier.ToolContext | None = None, **arguments: JsonValue) -> ToolResult:
    """Call the tool like a run does."""
    made = as_tool(tool)  # pyright: ignore[reportArgumentType]  anything may be given
    return await Toolbox([made]).call(made.info.name, arguments, context or metier.ToolContext(workspace=Path()))


async def test_models_dates_and_literals_are_converted_both_ways() -> None:
    @metier.tool
    def send(to: Address, on: date, how: Literal["ship", "plane"] = "ship") -> Parcel:
        """Send a parcel."""
        assert how == "ship"
        return Parcel(to=to, sent=on)

    result = await call(send, to={"street": "Main"}, on="2026-02-03")

    assert result.output == {"to": {"street": "Main", "number": 1}, "sent": "2026-02-03"}
    assert (send.info.effect, send.info.risk, send.info.category) == ("opaque", "medium", "custom")


async def test_parameters_may_have_the_names_of_model_class_attributes() -> None:
    @metier.tool
    def name_all(json: int, copy: int, model_fields: int, title: str, schema: str = "s") -> list[object]:
        """Use awkward names."""
        return [json, copy, model_fields, title, schema]

    assert (await call(name_all, json=1, copy=2, model_fields=3, title="t")).output == [1, 2, 3, "t", "s"]
    properties = name_all.info.input_schema["properties"]
    assert isinstance(properties, dict)
    assert list(properties) == ["json", "copy", "model_fields", "title", "schema"]


async def test_a_sync_function_does_not_block_the_event_loop() -> None:
    beside, main = threading.Event(), threading.current_thread()
    outputs: list[JsonValue] = []

    def wait_for_the_loop() -> bool:
        """Wait until the event loop has done something else."""
        return threading.current_thread() is not main and beside.wait(20)

    async with anyio.create_task_group() as group:

        async def do_something_else() -> None:
            beside.set()

        group.start_soon(do_something_else)
        outputs.append((await call(wait_for_the_loop)).output)

    assert outputs == [True]


async def test_a_slow_function_times_out_and_the_model_reads_the_error() -> None:
    @metier.tool
    async def sleep() -> None:
        """Sleep."""
        await anyio.sleep_forever()

    with anyio.fail_after(100):
        result = await call(sleep, metier.ToolContext(workspace=Path(), timeout_seconds=0.05))

    assert not result.ok
    assert result.meta["code"] == "timeout"
    assert "0.05 s" in result.error


async def test_an_exception_in_a_function_reaches_the_model() -> None:
    @metier.tool
    def refuse(kind: str) -> None:
        """Refuse."""
        if kind == "own":
            raise metier.ToolFailed("There is no such order", hint="Ask for the number")
        raise KeyError(kind)

    assert (await call(refuse, kind="own")).error == "There is no such order. Ask for the number"
    assert "KeyError" in (await call(refuse, kind="other")).error


async def test_arguments_rejected_only_by_python_are_named() -> None:
    @metier.tool
    def count(number: Annotated[int, Field(gt=2)], on: date) -> int:
        """Count."""
        raise AssertionError("not called")

    result = await call(count, number=3, on="never")

    assert not result.ok
    assert "on" in result.error


async def test_the_context_of_a_call_reaches_the_function_and_not_the_model() -> None:
    @metier.tool(name="charge_card", description="Charge a card.", effect="keyed", risk="high")
    async def charge(amount: int, context: metier.ToolContext) -> str:
        return f"{amount} under {context.idempotency_key}"

    result = await call(charge, metier.ToolContext(workspace=Path(), idempotency_key="key-1"), amount=3)

    assert result.output == "3 under key-1"
    assert charge.info.input_schema["required"] == ["amount"]
    assert (charge.info.name, charge.info.effect, charge.info.risk) == ("charge_card", "keyed", "high")


async def test_a_result_that_is_not_json_fails_without_conversion() -> None:
    @metier.tool
    def give() -> object:
        """Give something odd."""
        return object()

    assert "not JSON" in (await call(give)).error


def _no_hint(number: int) -> None:
    """Count."""


del _no_hint.__annotations__["number"]


def _many(*numbers: int) -> None:
    """Count."""


def _odd(where: threading.Lock) -> None:
    """Lock."""


def _silent(number: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [(_no_hint, "no type hint"), (_many, "named parameters"), (_odd, "schema"), (_silent, "no description")],
)
def test_a_function_without_a_valid_schema_is_rejected_at_decoration(function: object, why: str) -> None:
    with pytest.raises(metier.UsageError, match=why):
        metier.tool(function)  # pyright: ignore[reportArgumentType]


def test_an_object_that_is_not_a_function_is_rejected() -> None:
    with pytest.raises(metier.UsageError, match="neither a tool nor a function"):
        as_tool(3)  # pyright: ignore[reportArgumentType]
