"""What a person can do about a run that failed, as one line with a command."""

from metier.definitions.nearest import hint_nearest
from metier.engine.state import RunState
from metier.providers.facts import load_facts
from metier.runtime.questions.reopening import render_command


def suggest(state: RunState, *, run_id: str) -> list[str]:
    """`state` is the run that failed, `run_id` the one that a person started: the same, or one above it."""
    advice = _find_advice(state, run_id)
    return [f"next:    {advice}"] if advice else []


def _find_advice(state: RunState, run_id: str) -> str:
    if state.failure is None:
        return ""
    if state.failure.reason == "not_found":
        return _hint_model(state)
    return render_command(state, run_id) or _BY_REASON.get(state.failure.reason, "")


def _hint_model(state: RunState) -> str:
    """A provider that does not have a model was asked for one that is nearly the name of another."""
    started = state.started
    known = [name.rstrip("*") for name in load_facts().entries.get(started.provider, {})] if started else []
    hint = hint_nearest(started.model, [name for name in known if name]) if started else ""
    return f"{hint or 'Check the name of the model.'} Choose one with --model, or `agent config set model.name NAME`"


_BY_REASON = {
    "no_skill": '`agent skills route "…"` shows which skills fit; a model (`--provider`, `--model`) needs none',
    "prompt_too_large": ("raise `model.max_context_tokens` in agent.yaml, shorten the task, or offer fewer tools"),
    "skill_timeout": "raise `timeout_seconds` of the skill, or ask for less at once",
    "skill_blocked": "`agent runs show` says what was refused; change the contract of the skill or the rules",
    "skill_escalated": "the skill gave up: read what it says, then ask again with what it needs",
}
