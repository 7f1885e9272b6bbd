"""Prompts fit their budget, are trimmed in a fixed order, and keep required content."""

import itertools
import random
import re

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metier.context.budget import FittedPrompt, TokenBudget, fit, fit_exactly
from metier.context.layers import Disclosed, Exchange, Prompt
from metier.context.tokens import TokenCounter, calibrate, estimate_tokens
from metier.context.trimming import History, Trim, apply_trims
from metier.decisions import StepExecutionResult
from metier.engine.entries.model import ModelCallStarted
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.errors import PromptTooLarge
from metier.messages import Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec, assistant, user
from metier.providers.base import ModelRequest

BUDGET = TokenBudget(max_context_tokens=4_000, response_headroom_tokens=500)
TOOL = ToolSpec(name="Read", description="Read a file.", input_schema={"type": "object"})
SCRIPTS = [
    "The quick brown fox jumps over the lazy dog. ",
    "敏捷的棕色狐狸跳过懒狗。",
    "Съешь ещё этих мягких французских булок. ",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0x1f; }\n",
    "👩‍👩‍👧‍👦🎉🔥",
    "नमस्ते दुनिया ",
    "3.14159265358979 2718281828 ",
    '{"key": [1, 2, {"x": null}]}',
]


def exchange(turn: int, text: str = "short", tool: str = "Read") -> Exchange:
    call = ToolCallPart(id=f"c{turn}", name=tool, arguments={"path": f"f{turn}"})
    result = ToolResultPart(call_id=f"c{turn}", name=tool, text=text)
    step = StepExecutionResult(step_id=f"s{turn}", status="succeeded", tool=tool, stdout_summary=text[:40])
    return Exchange(
        reply=Message(role="assistant", parts=(TextPart(text=f"turn {turn}"), call)),
        results=(Message(role="tool", parts=(result,)),),
        steps=(step,),
        number=turn,
    )


def piece(path: str, size: int, stage: int = 2) -> Disclosed:
    return Disclosed(skill="notes", path=path, stage=stage, text=f"<{path}>" + "word " * size)  # pyright: ignore[reportArgumentType]


def fitted(prompt: Prompt, budget: TokenBudget = BUDGET, factor: float = 1.0) -> FittedPrompt:
    return fit(prompt, tools=(TOOL,), budget=budget, counter=TokenCounter(), factor=factor)


def text_of(result: FittedPrompt) -> str:
    return "\n".join(
        part.text
        for message in result.messages
        for part in message.parts
        if isinstance(part, TextPart | ToolResultPart)
    )


def calls_and_results(messages: tuple[Message, ...]) -> tuple[set[str], set[str]]:
    parts = [part for message in messages for part in message.parts]
    calls = {part.id for part in parts if isinstance(part, ToolCallPart)}
    return calls, {part.call_id for part in parts if isinstance(part, ToolResultPart)}


def test_prompt_within_the_budget_is_complete_and_counted() -> None:
    result = fitted(Prompt(base="Be good.", catalog="- notes", task="Tidy up", run=(exchange(1),)))

    assert result.trimmed == ()
    assert result.tokens == sum(result.layers.values()) + result.tool_schema_tokens
    assert [block.cache for block in result.system] == [False, True]


def test_text_of_an_earlier_skill_is_trimmed_before_that_of_the_active_skill() -> None:
    prompt = Prompt(
        base="Be good.",
        task="Tidy up",
        skill="notes",
        disclosed=(
            piece("SKILL.md", 400, stage=1),
            replace(piece("old.md", 2_000), skill="other", digest="d1"),
            piece("b.md", 1_000),
        ),
        run=(exchange(1),),
    )

    result = fitted(prompt)

    assert result.trimmed == ("disclosed:other:old.md",)
    assert [trim.digest for trim in result.trims] == ["d1"]
    assert "<SKILL.md>" in text_of(result)
    assert "<b.md>" in text_of(result)


def test_old_results_are_trimmed_before_references_of_the_active_skill() -> None:
    reading = replace(exchange(1, "rate " * 1_000, tool="read_skill_files"), skill="notes", reads=True)
    run = (reading, exchange(2, "word " * 1_500), exchange(3, "word " * 300))

    result = fitted(Prompt(base="Be good.", task="Tidy up", skill="notes", run=run))

    assert result.trimmed == ("run:results of 1 turns shortened",)
    assert "rate " * 1_000 in text_of(result)
    assert "word " * 300 in text_of(result)
    assert calls_and_results(result.messages) == ({"c1", "c2", "c3"}, {"c1", "c2", "c3"})


def test_old_turns_are_dropped_in_groups_and_summarized_in_one_line_each() -> None:
    run = tuple(exchange(turn, "word " * 50 + "x" * 60) for turn in range(1, 61))

    result = fitted(Prompt(base="Be good.", task="Tidy up", run=run))

    calls, results = calls_and_results(result.messages)
    gone = 60 - len(calls)
    assert calls == results == {f"c{turn}" for turn in range(gone + 1, 61)}
    assert gone % 4 == 0
    assert result.trimmed[-1] == f"run:{gone} turns"
    assert f"- s{gone} Read succeeded: word word" in text_of(result)


def test_the_prefix_stays_stable_while_a_run_grows() -> None:
    prompt, history = Prompt(base="Be good.", task="Tidy up"), History(run=())
    sent: list[tuple[Message, ...]] = []
    for turn in range(1, 60):
        history = replace(history, run=(*history.run, exchange(turn, "word " * 200)))
        result = fitted(replace(prompt, run=history.run, earlier=history.earlier))
        history = apply_trims(history, result.trims)
        sent.append(result.messages)

    changes = sum(1 for before, after in itertools.pairwise(sent) if after[: len(before)] != before)

    assert changes <= len(sent) // 2
    assert history.earlier


def test_trimmed_history_produces_the_same_request_again() -> None:
    run = tuple(exchange(turn, "word " * 400) for turn in range(1, 20))
    prompt = Prompt(base="Be good.", task="Tidy up", run=run)

    first = fitted(prompt)
    history = apply_trims(History(run=run), first.trims)
    again = fitted(replace(prompt, run=history.run, earlier=history.earlier))

    assert again.messages == first.messages
    assert again.trims == ()


def test_conversation_is_trimmed_before_results_and_starts_with_a_user_message() -> None:
    conversation = tuple(user("word " * 300) if i % 2 == 0 else assistant("word " * 300) for i in range(10))
    prompt = Prompt(base="Be good.", task="Now this", conversation=conversation, run=(exchange(1, "word " * 200),))

    result = fitted(prompt)

    assert result.messages[0].role == "user"
    assert "taken out" not in text_of(result)


def test_one_giant_result_is_shortened_in_the_middle() -> None:
    result = fitted(Prompt(base="Be good.", task="Tidy up", run=(exchange(1, "a" + "word " * 50_000 + "z"),)))

    assert "characters taken out" in text_of(result)
    assert result.tokens <= BUDGET.limit


def test_missing_characters_are_counted_across_repeated_truncation() -> None:
    history = History(run=(exchange(1, "word " * 10_000),))
    for most in (8_000, 2_000):
        history = apply_trims(history, [Trim(what="exchange", exchange=1, size="short", characters=most)])

    text = next(part.text for part in history.run[0].results[0].parts if isinstance(part, ToolResultPart))
    mark = re.search(r"\n\[… (\d+) characters taken out.*\]\n", text)
    assert mark is not None
    assert int(mark[1]) + len(text) - len(mark[0]) == 50_000


def test_system_layers_are_not_trimmed_and_oversized_ones_are_reported() -> None:
    with pytest.raises(PromptTooLarge, match="the budget is 3500"):
        fitted(Prompt(base="word " * 5_000, task="Tidy up"))


def test_a_thousand_random_prompts_are_trimmed_deterministically_to_the_budget() -> None:
    rng = random.Random(11)
    for _ in range(1_000):
        prompt = random_prompt(rng)
        budget = TokenBudget(max_context_tokens=rng.randrange(2_000, 12_000), response_headroom_tokens=300)
        factor = rng.choice([0.8, 1.0, 1.3])

        first = fitted(prompt, budget, factor)
        second = fitted(prompt, budget, factor)

        assert first.tokens <= budget.limit
        assert first == second
        calls, results = calls_and_results(first.messages)
        assert calls == results
        assert prompt.task in text_of(first)


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9_000), st.booleans()), min_size=1, max_size=40),
    window=st.integers(2_700, 9_000),
)
def test_newest_results_are_complete_or_marked_and_nothing_is_removed_twice(
    turns: list[tuple[int, int, bool]], window: int
) -> None:
    """A run of random calls, driven like by the engine: each request starts from the previous one."""
    state = RunState("r")
    whole: dict[int, str] = {}
    for number, (file, size, reads) in enumerate(turns, start=1):
        tool = "read_skill_files" if reads else "Read"
        text = f"{file} begins " + "word " * (size // 5) + f" {file} ends"
        each = replace(exchange(number, text, tool=tool), skill="notes", reads=reads, asked=frozenset({str(file)}))
        state.run.append(replace(each, is_kept=not state.lost.isdisjoint(each.asked)))
        whole[number] = text
        before = list(state.run)

        prompt = Prompt(base="Be good.", task="Tidy up", skill="notes", run=tuple(state.run), earlier=state.earlier)
        result = fitted(prompt, TokenBudget(max_context_tokens=window, response_headroom_tokens=200))
        apply(state, ModelCallStarted(turn=number, request_hash="", prefix_hash="", estimated_tokens=1,
                                      trims=result.trims))  # fmt: skip

        newest = _result_text(result.messages[-1])
        assert newest == whole[number] or MARK in newest
        assert result.tokens <= window - 200
        _check_kept_go_last(before, result)


MARK = "characters taken out to save room"


def _check_kept_go_last(before: list[Exchange], result: FittedPrompt) -> None:
    """A result that was removed and read again is trimmed last."""
    touched = {trim.exchange for trim in result.trims}
    if not any(each.is_kept and each.number in touched for each in before[:-1]):
        return
    others = [each for each in result.prompt.run[:-1] if not each.is_kept and not each.reads]
    assert all(len(_result_text(each.results[0])) < 600 for each in others)


def _result_text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, ToolResultPart))


def random_prompt(rng: random.Random) -> Prompt:
    def words(most: int) -> str:
        return rng.choice(SCRIPTS) * rng.randrange(most)

    return Prompt(
        base="Be good.",
        catalog=words(5),
        task="Tidy up " + words(5),
        conversation=tuple(user(words(40)) if i % 2 == 0 else assistant(words(40)) for i in range(rng.randrange(6))),
        disclosed=tuple(
            replace(piece(f"r{i}.md", 0, stage=rng.choice([1, 2, 3])), text=words(80)) for i in range(rng.randrange(4))
        ),
        run=tuple(
            exchange(i, words(80), tool=rng.choice(["Read", "read_skill_files"]))
            for i in range(1, rng.randrange(2, 13))
        ),
    )


@pytest.mark.parametrize("text", SCRIPTS)
def test_estimate_is_never_below_a_token_for_four_characters(text: str) -> None:
    assert estimate_tokens(text * 50) >= len(text * 50) / 4


def test_calibration_rises_immediately_falls_slowly_and_stays_bounded() -> None:
    assert calibrate(1.0, estimated=100, reported=150) == 1.5
    assert calibrate(1.5, estimated=100, reported=100) == pytest.approx(1.4)
    assert calibrate(1.0, estimated=1, reported=1_000) == 3.0
    assert calibrate(1.2, estimated=0, reported=10) == 1.2


def test_provider_counts_tokens_only_near_the_limit_and_its_count_is_used() -> None:
    asked: list[str] = []

    async def count(request: ModelRequest) -> int:
        asked.append(request.model)
        return 4_200

    async def factors() -> list[float | None]:
        small = fitted(Prompt(base="Be good.", task="Tidy up"))
        large = fitted(Prompt(base="Be good.", task="word " * 2_350))
        return [
            await fit_exactly(each, request=ModelRequest(model="m", messages=each.messages), budget=BUDGET, count=count)
            for each in (small, large)
        ]

    result = anyio.run(factors)

    assert asked == ["m"]
    assert result[0] is None
    assert result[1] is not None
    assert result[1] > 1.0
