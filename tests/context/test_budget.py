"""A prompt fits its budget, is trimmed in one order, and never loses what it must say."""

import itertools
import random
from dataclasses import replace

import anyio
import pytest

from metier.context.budget import STUB, FittedPrompt, TokenBudget, fit, fit_exactly
from metier.context.layers import Disclosed, Exchange, Prompt
from metier.context.tokens import TokenCounter, calibrate, estimate_tokens
from metier.decisions import StepExecutionResult
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


def test_prompt_that_fits_is_left_whole_and_accounted_for() -> None:
    result = fitted(Prompt(base="Be good.", catalog="- notes", task="Tidy up", run=(exchange(1),)))

    assert result.trimmed == ()
    assert result.tokens == sum(result.layers.values()) + result.tool_schema_tokens
    assert [block.cache for block in result.system] == [False, True]


def test_references_go_first_oldest_first_and_the_overview_stays() -> None:
    prompt = Prompt(
        base="Be good.",
        task="Tidy up",
        disclosed=(piece("SKILL.md", 400, stage=1), piece("a.md", 1500), piece("b.md", 1000), piece("c.md", 400)),
        run=(exchange(1),),
    )

    result = fitted(prompt)

    assert result.trimmed == ("disclosed:notes:a.md",)
    assert "<SKILL.md>" in text_of(result)
    assert "<c.md>" in text_of(result)


def test_references_read_by_a_call_lose_their_text_and_stay_a_pair() -> None:
    run = (exchange(1, "word " * 2500, tool="read_skill_files"), exchange(2), exchange(3))

    result = fitted(Prompt(base="Be good.", task="Tidy up", run=run))

    assert result.trimmed == ("disclosed:turn 1",)
    assert STUB in text_of(result)
    assert calls_and_results(result.messages) == ({"c1", "c2", "c3"}, {"c1", "c2", "c3"})


def test_old_turns_are_dropped_in_groups_and_told_in_a_line_each() -> None:
    run = tuple(exchange(turn, "word " * 300) for turn in range(1, 13))

    result = fitted(Prompt(base="Be good.", task="Tidy up", run=run))

    calls, results = calls_and_results(result.messages)
    assert calls == results == {"c9", "c10", "c11", "c12"}
    assert result.trimmed == ("run:8 turns",)
    assert "- s8 Read succeeded: word word" in text_of(result)


def test_the_prefix_stays_the_same_while_a_run_grows() -> None:
    run = tuple(exchange(turn, "word " * 200) for turn in range(1, 40))
    prompt = Prompt(base="Be good.", task="Tidy up")
    firsts = [fitted(replace(prompt, run=run[:length])).messages[0] for length in range(20, 39)]

    changes = sum(1 for before, after in itertools.pairwise(firsts) if before != after)

    assert changes <= len(firsts) // 4 + 1
    assert len({fitted(replace(prompt, run=run[:length])).prefix_hash for length in range(20, 39)}) == 1


def test_conversation_goes_before_results_are_shortened_and_starts_with_a_user() -> None:
    conversation = tuple(user("word " * 300) if i % 2 == 0 else assistant("word " * 300) for i in range(10))
    prompt = Prompt(base="Be good.", task="Now this", conversation=conversation, run=(exchange(1, "word " * 200),))

    result = fitted(prompt)

    assert result.messages[0].role == "user"
    assert "left out" not in text_of(result)


def test_one_giant_result_is_shortened_in_the_middle() -> None:
    result = fitted(Prompt(base="Be good.", task="Tidy up", run=(exchange(1, "a" + "word " * 50_000 + "z"),)))

    assert "characters left out" in text_of(result)
    assert result.tokens <= BUDGET.limit


def test_system_layers_are_never_trimmed_and_too_much_of_them_is_said() -> None:
    with pytest.raises(PromptTooLarge, match="the budget is 3500"):
        fitted(Prompt(base="word " * 5_000, task="Tidy up"))


def test_a_thousand_random_prompts_stay_inside_the_budget_and_are_trimmed_alike() -> None:
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
            exchange(i, words(80), tool=rng.choice(["Read", "read_skill_files"])) for i in range(rng.randrange(12))
        ),
    )


@pytest.mark.parametrize("text", SCRIPTS)
def test_estimate_is_never_below_a_token_for_four_characters(text: str) -> None:
    assert estimate_tokens(text * 50) >= len(text * 50) / 4


def test_calibration_rises_at_once_falls_slowly_and_stays_bounded() -> None:
    assert calibrate(1.0, estimated=100, reported=150) == 1.5
    assert calibrate(1.5, estimated=100, reported=100) == pytest.approx(1.4)
    assert calibrate(1.0, estimated=1, reported=1_000) == 3.0
    assert calibrate(1.2, estimated=0, reported=10) == 1.2


def test_provider_is_asked_only_near_the_limit_and_its_count_decides() -> None:
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
