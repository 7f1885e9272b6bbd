"""Segments match the sent text exactly; conversations stay within their limit."""

from metier.context.budget import TokenBudget, fit
from metier.context.layers import CAPS, Disclosed, Exchange, Prompt, build_messages, build_system, cap_conversation
from metier.context.provenance import find_difference, list_segments
from metier.context.tokens import TokenCounter
from metier.decisions import StepExecutionResult
from metier.messages import Message, TextPart, assistant, user

PROMPT = Prompt(
    base="base", safety="safety", soul="soul", profile="profile", agent="agent", catalog="catalog",
    conversation=(user("before"), assistant("answered")), task="task", step="step", input="input",
    disclosed=(Disclosed(skill="s", path="SKILL.md", stage=1, text="disclosed"),),
    run=(Exchange(reply=assistant("reply"), results=(user("result"),)),),
    earlier=(StepExecutionResult(step_id="t1", status="succeeded", tool="Read"),),
)  # fmt: skip
BUDGET = TokenBudget(max_context_tokens=10_000, response_headroom_tokens=100)


def test_segments_contain_every_sent_text_in_order() -> None:
    fitted = fit(PROMPT, tools=(), budget=BUDGET, counter=TokenCounter())

    segments = list_segments(fitted)

    sent = [block.text for block in build_system(PROMPT)]
    for message in build_messages(PROMPT):
        sent += [part.text for part in message.parts if isinstance(part, TextPart)]
    assert len(segments) == len(sent)
    assert all(text in segment.text for text, segment in zip(sent, segments, strict=True))


def test_difference_is_the_first_byte_even_inside_a_multibyte_character() -> None:
    first, second = (
        list_segments(fit(Prompt(base="same", task=f"gr{letter}n"), tools=(), budget=BUDGET, counter=TokenCounter()))
        for letter in ("ü", "ö")
    )

    difference = find_difference(first, second)

    assert difference is not None
    assert (difference.offset, difference.first, difference.second) == (len(b"samegr") + 1, "task", "task")
    assert find_difference(first, first) is None


def test_the_conversation_keeps_its_latest_messages_and_starts_with_the_user() -> None:
    long = "x" * (CAPS["conversation"] // 3)
    said: list[Message] = [
        user(f"1{long}"),
        assistant(long),
        user(f"2{long}"),
        assistant("short"),
        user("3"),
        assistant(""),
    ]

    kept = cap_conversation(said)

    assert kept == tuple(said[2:])
    assert cap_conversation([user("x" * (CAPS["conversation"] + 1))]) == ()
