"""Earlier turns in a chat's prompt: limited, with complete messages of the user. Pure."""

from itertools import pairwise

import pytest

from metier.context.budget import TokenBudget, fit
from metier.context.conversation import (
    ChatOptions,
    KnownFact,
    PastTurn,
    build_measures,
    build_messages,
    build_turn,
    count_folded,
    count_tokens,
    cut,
    find_facts,
    parse_facts,
    render_facts,
)
from metier.context.layers import Prompt
from metier.context.tokens import TokenCounter, estimate_tokens
from metier.messages import TextPart

MEASURES = build_measures(ChatOptions(), limit=6_000)


def turns(count: int, *, words: int = 20) -> tuple[PastTurn, ...]:
    return tuple(
        PastTurn(run_id=f"r{n}", said=f"message {n} " + "word " * words, answer="reply " * words, number=n, turn=n)
        for n in range(1, count + 1)
    )


@pytest.mark.parametrize("words", [1, 20, 200, 5_000])
def test_several_turns_pass_between_two_summaries(words: int) -> None:
    told: tuple[PastTurn, ...] = ()
    folded_at: list[int] = []
    for turn in turns(200, words=words):
        told = (*told, turn)
        count = count_folded(told, MEASURES)
        if count:
            folded_at.append(turn.turn)
            told = told[count:]
        assert told
        assert sum(count_tokens(each, MEASURES) for each in told) <= MEASURES.fold_tokens

    assert len(folded_at) > 2
    assert min(later - earlier for earlier, later in pairwise(folded_at)) >= 3


def test_few_short_turns_are_not_summarized_unless_the_log_is_full() -> None:
    assert count_folded(turns(5), MEASURES) == 0
    assert count_folded(turns(5), MEASURES, is_crowded=True) == 5
    assert count_folded((), MEASURES, is_crowded=True) == 0


def test_one_turn_takes_a_limited_share_of_the_conversation() -> None:
    huge = PastTurn(run_id="r", said="wort " * 9000, answer="日本語" * 9000, notes=("note " * 500,) * 9)

    assert count_tokens(huge, MEASURES) <= MEASURES.fold_tokens * 0.32


def test_completed_actions_are_attached_to_the_user_message_and_not_the_reply() -> None:
    person, model = build_turn(
        PastTurn(run_id="r", said="Do it", answer="Done.", notes=("Write(a): succeeded",)), MEASURES
    )

    assert "Write(a): succeeded" in str(person.parts[1])
    assert model.parts == (TextPart(text="Done."),)
    assert "No answer" in str(build_turn(PastTurn(run_id="r", said="x"), MEASURES)[1])


@pytest.mark.parametrize("text", ["short", "word " * 999, "日本" * 2000, "9" * 5000, ""])
def test_an_oversized_text_keeps_its_ends_within_the_limit(text: str) -> None:
    shorter = cut(text, 100)

    assert estimate_tokens(shorter) <= 100
    assert shorter[:2] == text[:2]
    assert shorter[-2:] == text[-2:]


def test_all_facts_of_the_user_and_the_latest_others_are_shown() -> None:
    told = [KnownFact(key=f"k{n}", text="about " * 30 + str(n)) for n in range(50)]
    own = KnownFact(key="door", text="code 4711", is_own=True)

    shown = render_facts([*told, own], MEASURES)

    assert "door: code 4711" in shown
    assert "more are not shown" in shown
    assert "about 49" in shown
    assert "about 0\n" not in shown
    assert render_facts([], MEASURES) == ""


def test_the_budget_drops_turns_and_the_summary_before_facts() -> None:
    prompt = Prompt(
        base="Be good.", facts="- code 4711", summary="Long ago. " * 100, task="Now " * 300,
        conversation=build_messages(turns(8, words=60), MEASURES),
    )  # fmt: skip
    budget = TokenBudget(max_context_tokens=520, response_headroom_tokens=100)

    fitted = fit(prompt, tools=(), budget=budget, counter=TokenCounter())

    assert fitted.trimmed[-1] == "conversation:summary"
    assert "code 4711" in str(fitted.messages)
    assert "Long ago" not in str(fitted.messages)


@pytest.mark.parametrize(
    ("message", "facts"),
    [
        ("Hello, my name is Ada.", {"my name": "my name is Ada."}),
        ("Our release branch is harvest-9.2, ok", {"our release branch": "Our release branch is harvest-9.2, ok"}),
        ("Please remember that the door code is 4711!", {"the door code": "the door code is 4711!"}),
        ("Call me Ishmael. And never push!", {"my name": "Call me Ishmael."}),
        ("Never push on Fridays.", {"never push on fridays": "Never push on Fridays."}),
        ("I'm a nurse\nI prefer tea", {"i'm a nurse": "I'm a nurse", "i prefer tea": "I prefer tea"}),
        ("What is my name?", {}),
        ("The tests are red. I am wondering why.", {}),
        ("My " + "very " * 200 + "long story is this", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_facts_are_found_in_plain_sentences(message: str, facts: dict[str, str]) -> None:
    assert {fact.key: fact.text for fact in find_facts(message)} == facts


def test_facts_listed_by_a_model_are_parsed_and_other_text_is_ignored() -> None:
    listed = "- **Pet**: Miro, a cat\n* port: 8080\nno fact here\n- : nothing\n- empty:\n"

    assert {fact.key: fact.text for fact in parse_facts(listed)} == {"pet": "Miro, a cat", "port": "8080"}
