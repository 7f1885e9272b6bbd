"""Replies are decoded to decisions or failures with a reason."""

import json
import random

import pytest
from pydantic import JsonValue

from metier.context.control import build_control_specs, choose_specs
from metier.context.decoder import Decoded, Decoder, Undecodable, as_call, build_step, repair_request
from metier.decisions import ActionStep
from metier.messages import ModelReply, Part, StopReason, TextPart, ThinkingPart, ToolCallPart, ToolSpec
from metier.values import dump_fields

READ = ToolSpec(
    name="Read",
    description="Read a file.",
    input_schema={
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
        "required": ["path"],
        "additionalProperties": False,
    },
)
BASH = ToolSpec(
    name="Bash",
    description="Run a command.",
    input_schema={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
ALL_CONTROL = ("use_skill", "read_skill_files", "skill_search", "ask_user", "delegate", "run_task", "finish")
TOOLS = (READ, BASH, *choose_specs(build_control_specs(), ALL_CONTROL))


def reply(*parts: Part, stop: StopReason = "tool_calls") -> ModelReply:
    return ModelReply(parts=parts, stop_reason=stop, provider="p", model="m")


def said(text: str, stop: StopReason = "end") -> ModelReply:
    return reply(TextPart(text=text), stop=stop)


def call(name: str, call_id: str = "c1", **arguments: JsonValue) -> ToolCallPart:
    return ToolCallPart(id=call_id, name=name, arguments=arguments)


def decoded(answer: ModelReply, mode: str = "native_with_json_fallback") -> Decoded:
    outcome = Decoder(TOOLS, mode=mode).decode(answer)  # pyright: ignore[reportArgumentType]
    assert isinstance(outcome, Decoded), outcome
    return outcome


def undecodable(answer: ModelReply, mode: str = "native_with_json_fallback") -> Undecodable:
    outcome = Decoder(TOOLS, mode=mode).decode(answer)  # pyright: ignore[reportArgumentType]
    assert isinstance(outcome, Undecodable), outcome
    return outcome


def test_parallel_calls_become_actions_in_call_order() -> None:
    outcome = decoded(reply(TextPart(text="I look."), call("Read", "a", path="x"), call("Bash", "b", command="ls")))

    assert outcome.path == "native"
    assert outcome.decision.reasoning_summary == "I look."
    assert [(step.type, step.call_id) for step in outcome.decision.planned_actions] == [
        ("call_tool", "a"),
        ("run_command", "b"),
    ]


def test_skill_and_disclosure_calls_fill_the_decision() -> None:
    outcome = decoded(
        reply(
            call("use_skill", "a", skill="notes", reason="fits"), call("read_skill_files", "b", paths=["SKILL.md#Use"])
        )
    )

    assert outcome.decision.selected_skill == "notes"
    assert outcome.decision.reasoning_summary == "fits"
    assert outcome.decision.required_disclosure_paths == ("SKILL.md#Use",)


def test_plain_text_is_the_result() -> None:
    outcome = decoded(said("All done."))

    assert outcome.path == "text"
    assert outcome.decision.planned_actions[0].params == {"result": "All done."}


@pytest.mark.parametrize(
    "text",
    [
        '{"planned_actions": [{"type": "finish", "params": {"result": "ok"}}]}',
        'Here it is:\n```json\n{"planned_actions": [{"type": "finish", "params": {"result": "ok"}}]}\n```\nBye.',
        '{"planned_actions": [{"type": "finish", "params": {"result": "ok"},},],}',
        '{\n // the plan\n "planned_actions": [{"type": "finish", /* end */ "params": {"result": "ok"}}]}',
        'I thought {about} it. {"planned_actions": [{"type": "finish", "params": {"result": "ok"}}]}',
    ],
)
@pytest.mark.parametrize("mode", ["json", "native_with_json_fallback"])
def test_json_decision_is_recovered_from_fences_prose_commas_and_comments(text: str, mode: str) -> None:
    outcome = decoded(said(text), mode)

    assert outcome.path == "json"
    assert outcome.decision.planned_actions[0].params == {"result": "ok"}


def test_comment_marks_and_commas_inside_strings_are_kept() -> None:
    text = '{"planned_actions": [{"type": "finish", "params": {"result": "http://x, /* no */ ,] \\" }"}},]}'

    outcome = decoded(said(text), "json")

    assert outcome.decision.planned_actions[0].params == {"result": 'http://x, /* no */ ,] " }'}


def test_json_answer_that_is_not_a_decision_becomes_the_result() -> None:
    text = '{"files": 3, "largest": "a.txt"}'

    outcome = decoded(said(text))

    assert outcome.path == "text"
    assert outcome.decision.planned_actions[0].params == {"result": text}


def test_text_in_json_mode_can_be_repaired_once_with_the_schema() -> None:
    failure = undecodable(said("I would rather talk."), "json")

    assert (failure.reason, failure.can_repair) == ("invalid_json", True)
    assert "planned_actions" in repair_request(failure)


def test_decision_of_the_wrong_shape_names_the_field() -> None:
    failure = undecodable(said('{"planned_actions": [{"type": "explode"}]}'), "json")

    assert failure.reason == "invalid_decision"
    assert failure.message.startswith("planned_actions.0.type")


def test_decision_without_actions_is_not_a_decision() -> None:
    assert undecodable(said('{"planned_actions": []}'), "json").reason == "invalid_decision"


def test_refusal_truncation_and_empty_replies_are_distinguished() -> None:
    refused = undecodable(said("I cannot help with that.", stop="refusal"))
    cut = undecodable(reply(call("Read", path="x"), stop="max_tokens"))
    empty = undecodable(reply(ThinkingPart(text="hm", provider="p"), TextPart(text="  "), stop="end"))

    assert [(f.reason, f.can_repair) for f in (refused, cut, empty)] == [
        ("refusal", False),
        ("truncated", True),
        ("empty", True),
    ]


def test_unknown_tool_gets_suggestions_and_other_calls_still_run() -> None:
    outcome = decoded(reply(call("Raed", "a", path="x"), call("Read", "b", path="y")))

    assert [step.call_id for step in outcome.decision.planned_actions] == ["b"]
    assert [(no.call_id, no.code) for no in outcome.rejected] == [("a", "unknown_tool")]
    assert "did you mean Read" in outcome.rejected[0].message


@pytest.mark.parametrize(
    ("arguments", "place"),
    [({}, "$"), ({"path": 3}, "$.path"), ({"path": "x", "limit": 0}, "$.limit"), ({"path": "x", "y": 1}, "$")],
)
def test_invalid_arguments_are_answered_with_their_path(arguments: dict[str, JsonValue], place: str) -> None:
    outcome = decoded(reply(call("Read", "a", **arguments)))

    assert outcome.decision.planned_actions == ()
    assert outcome.rejected[0].code == "invalid_arguments"
    assert "Invalid input for 'Read'" in outcome.rejected[0].message
    assert f"(at {place})" in outcome.rejected[0].message


def test_all_errors_of_a_call_are_reported_together() -> None:
    outcome = decoded(reply(call("Read", "a", file="x", limit=0)))

    for wrong in ("'path' is a required property", "'file' was unexpected", "(at $.limit)"):
        assert wrong in outcome.rejected[0].message


def test_almost_valid_json_arguments_are_parsed_and_invalid_ones_are_answered() -> None:
    almost = ToolCallPart(id="a", name="Read", raw_arguments='{"path": "x",}')
    broken = ToolCallPart(id="b", name="Read", raw_arguments='{"path": ')

    outcome = decoded(reply(almost, broken))

    assert outcome.decision.planned_actions[0].params["arguments"] == {"path": "x"}
    assert [(no.call_id, no.code) for no in outcome.rejected] == [("b", "invalid_arguments")]


def test_finish_comes_after_the_other_calls_and_the_second_one_is_refused() -> None:
    outcome = decoded(
        reply(call("finish", "a", result="1"), call("Read", "b", path="x"), call("finish", "c", result="2"))
    )

    assert [step.call_id for step in outcome.decision.planned_actions] == ["b", "a"]
    assert [(no.call_id, no.code) for no in outcome.rejected] == [("c", "one_at_a_time")]


def test_first_of_two_requested_skills_becomes_active() -> None:
    outcome = decoded(reply(call("use_skill", "a", skill="one"), call("use_skill", "b", skill="two")))

    assert outcome.decision.selected_skill == "one"
    assert outcome.rejected[0].call_id == "b"


def test_question_and_finish_in_one_reply_keep_the_question() -> None:
    outcome = decoded(reply(call("finish", "a", result="1"), call("ask_user", "b", question="Which?")))

    assert [step.type for step in outcome.decision.planned_actions] == ["ask_user"]
    assert outcome.rejected[0].call_id == "a"


def test_step_and_call_are_each_others_inverse() -> None:
    for tool in TOOLS:
        step = build_step(tool.name, {"x": 1}, call_id="c")

        assert as_call(step) == ToolCallPart(id="c", name=tool.name, arguments={"x": 1})


def test_schema_with_a_remote_reference_fetches_nothing() -> None:
    remote = ToolSpec(name="T", description="", input_schema={"$ref": "http://127.0.0.1:9/schema.json"})

    outcome = Decoder([remote]).decode(reply(call("T", "a")))

    assert isinstance(outcome, Decoded)
    assert outcome.rejected[0].code == "invalid_arguments"


def test_deep_and_huge_text_is_parsed_in_bounded_time() -> None:
    for text in ("{" * 200_000, '{"a":' * 100_000, "[" * 100_000, "{}" * 100_000, '{"' * 100_000, "9" * 100_000):
        outcome = Decoder(TOOLS, mode="json").decode(said(text))

        assert isinstance(outcome, Undecodable)


def test_ten_thousand_mutated_replies_yield_a_decision_or_a_typed_failure() -> None:
    rng = random.Random(7)
    seeds = [
        '{"selected_skill": "x", "planned_actions": [{"type": "call_tool", "params": {"tool": "Read"}}]}',
        '```json\n{"planned_actions": [{"type": "finish", "params": {"result": "é😀"}}]}\n```',
        '{"path": "x", "limit": 3}',
    ]
    stops: list[StopReason] = ["end", "tool_calls", "max_tokens", "refusal", "other"]
    for turn in range(10_000):
        text = mutate(rng.choice(seeds), rng)
        parts: list[Part] = [TextPart(text=text)] if turn % 3 else []
        if turn % 2:
            parts.append(ToolCallPart(id="c", name=mutate("Read", rng), raw_arguments=text))
        outcome = Decoder(TOOLS, mode=rng.choice(["json", "native", "native_with_json_fallback"])).decode(
            ModelReply(parts=tuple(parts), stop_reason=rng.choice(stops), provider="p", model="m")
        )

        assert isinstance(outcome, Decoded | Undecodable)
        if isinstance(outcome, Decoded):
            assert all(isinstance(step, ActionStep) for step in outcome.decision.planned_actions)
            json.dumps(dump_fields(outcome.decision))


def mutate(text: str, rng: random.Random) -> str:
    letters = list(text)
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(letters) + 1)
        match rng.randrange(4):
            case 0:
                letters[place:place] = rng.choice('{}[]",:\\/*\n\x00\ud800é9')
            case 1:
                del letters[place : place + rng.randrange(1, 9)]
            case 2:
                letters[place:place] = letters[: rng.randrange(20)]
            case _:
                letters = letters[:place] or ["{"]
    return "".join(letters)


def test_run_of_an_older_version_keeps_a_finish_written_as_text() -> None:
    text = '{"type": "finish", "params": {"result": "Done."}}'

    old = Decoder(TOOLS, unwraps_finish=False).decode(said(text))
    new = Decoder(TOOLS).decode(said(text))

    assert isinstance(old, Decoded)
    assert isinstance(new, Decoded)
    assert old.decision.planned_actions[0].params == {"result": text}
    assert new.decision.planned_actions[0].params == {"result": "Done."}
