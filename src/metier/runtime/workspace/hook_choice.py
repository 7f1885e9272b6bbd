"""Which hooks of a workspace a run is pinned to."""

from metier.runtime.workspace.agents import SUMMARIZER
from metier.runtime.workspace.hooks import load_hooks
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.tools.hooks.definition import HookCommand


def choose_hooks(run: PreparedRun) -> tuple[HookCommand, ...]:
    """The hooks that a run is pinned to when it begins. Work that is handed on has those of the run above."""
    if run.is_dry:
        return ()
    hooks = load_hooks(run.agent.place).hooks if run.hooks is None else run.hooks
    # A conversation is summed up by a run of its own: that it begins is the moment before the summary.
    is_summary = run.agent.id == SUMMARIZER
    is_begun = run.said is not None and bool(run.said.conversation)
    return tuple(
        hook
        for hook in hooks
        if (hook.event == "PreCompact") == is_summary and not (hook.event == "SessionStart" and is_begun)
    )
