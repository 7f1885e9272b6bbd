"""Folding a journal is linear: four times the entries, four times the time."""

import time

from bench.table import Row
from metier.decisions import ActionStep, ModelDecision
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import DecisionMade, ModelCallStarted, ModelReplied, ProgressVerified
from metier.engine.entries.run import RunStarted
from metier.engine.entries.skill import CatalogLoaded, ContextDisclosed, SkillsRanked
from metier.engine.entries.step import StepFinished, StepStarted
from metier.engine.state.fold import fold
from metier.messages import ModelReply, ToolCallPart, Usage

SMALL, LARGE = 2_500, 10_000
ENTRIES_PER_TURN = 6
ROUNDS = 5


def rows() -> list[Row]:
    small, large = _measure(SMALL), _measure(LARGE)
    ratio = large / small / (LARGE / SMALL)
    return [
        Row(f"fold of {LARGE} journal entries", f"{1000 * large:.0f} ms", "<= 500 ms", large <= 0.5),
        Row(f"fold per entry, {LARGE} / {SMALL} entries", f"{ratio:.2f} x", "<= 1.5 x", ratio <= 1.5),
    ]


def _measure(count: int) -> float:
    """The quickest of some rounds: what else the machine does only adds."""
    journal = _build_journal(count)
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        fold("bench", journal)
        times.append(time.process_time() - began)
    return min(times)


def _build_journal(count: int) -> list[Entry]:
    journal: list[Entry] = [
        RunStarted(task="t", provider="p", model="m", context_id="c", trace_id="t", workspace="w"),
        CatalogLoaded(skills=()),
        SkillsRanked(candidates=(), considered=0),
        ContextDisclosed(),
    ]
    turn = 0
    while len(journal) + ENTRIES_PER_TURN <= count:
        turn += 1
        journal += _build_turn(turn)
    return journal


def _build_turn(turn: int) -> list[Entry]:
    call = ToolCallPart(id=f"c{turn}", name="echo", arguments={"text": f"turn {turn}"})
    action = ActionStep(type="call_tool", params={"tool": "echo", "arguments": call.arguments}, call_id=call.id)
    usage = Usage(input_tokens=100, output_tokens=10)
    reply = ModelReply(parts=(call,), stop_reason="tool_calls", usage=usage, provider="p", model="m")
    step_id = f"{turn}.1"
    return [
        ModelCallStarted(turn=turn, request_hash="h", prefix_hash="p", estimated_tokens=100),
        ModelReplied(turn=turn, reply=reply),
        DecisionMade(turn=turn, decision=ModelDecision(planned_actions=(action,)), path="native"),
        StepStarted(step_id=step_id, action=action, effect="read", idempotency_key="k"),
        StepFinished(step_id=step_id, status="succeeded", text="word " * 40),
        ProgressVerified(following="CALL_LLM"),
    ]
