"""Any completed run replays equal and can be forked at every listed point."""

import os
import tempfile
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_scenarios import ENOUGH, build_tools, build_workspace, carry_out, open_at

from metier.engine.stopper import Stopper
from metier.providers.failures import QuotaExhausted
from metier.runtime.history.archive import load_archive, render_archive
from metier.runtime.history.replays import replay_run
from metier.runtime.history.transfer import export_run
from metier.testing.scripted import Line, ToolCall, calls, fails, says

pytestmark = pytest.mark.slow

CALLS = st.sampled_from(
    [
        ToolCall("use_skill", {"skill": "notes", "reason": "It fits"}),
        ToolCall("use_skill", {"skill": "reports", "reason": "Next"}),
        ToolCall("use_skill", {"skill": "nowhere"}),
        ToolCall("read_skill_files", {"paths": ["SKILL.md", "none.md"]}),
        ToolCall("skill_search", {"query": "reports"}),
        ToolCall("Look", {"text": "a"}),
        ToolCall("Look", {"text": "é\u200b\x1b[31m"}),
        ToolCall("Look", {"text": 7}),
        ToolCall("Put", {"text": "b"}),
        ToolCall("Pay", {"text": "c"}),
        ToolCall("Post"),
        ToolCall("Stop"),
        ToolCall("notes.break"),
        ToolCall("Nothing"),
        ToolCall("ask_user", {"question": "Which colour?"}),
        ToolCall("finish", {"result": "Early."}),
    ]
)
LINES = st.one_of(
    st.lists(CALLS, min_size=1, max_size=4).map(lambda made: calls(*made)),
    st.lists(CALLS, min_size=1, max_size=4).map(lambda made: calls(*made, text="I think so.")),
    st.sampled_from([says(""), says("{"), says("Half", stop_reason="max_tokens"), fails(QuotaExhausted("No more"))]),
)


@settings(max_examples=200 if os.environ.get("METIER_CRASH_ALL") else 20, deadline=None, derandomize=True)
@given(script=st.lists(LINES, max_size=5), guarded=st.booleans())
def test_any_run_replays_equal_even_from_a_file(script: list[Line], guarded: bool) -> None:
    anyio.run(check_replay, script, guarded)


async def check_replay(script: list[Line], guarded: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = build_workspace(Path(folder) / "project")
        stopper = Stopper()
        profile = "guarded" if guarded else "permissive"
        tools = build_tools(stopper)
        async with open_at(workspace, *script, *ENOUGH, profile=profile, tools=tools) as runtime:
            state = await carry_out(runtime, stopper=stopper)
            report = await replay_run(runtime, state.run_id)
            archive = await export_run(runtime, state.run_id)

        assert report.outcome.divergence is None
        assert report.outcome.compared == state.seq
        file = Path(folder) / "a.metier-run"
        file.write_bytes(render_archive(archive))
        assert load_archive(file) == archive
