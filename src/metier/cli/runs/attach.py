"""`agent runs attach`: follow a run that another process drives, also on another machine, and answer it."""

import sys
from contextlib import closing

import anyio
import typer

from metier.cli.run.approval_dialog import Prompter, find_asker
from metier.cli.run.driver import build_reader
from metier.cli.run.live import EVENTS, ShownRun, ticking
from metier.cli.run.resume import parse_inputs
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import build_local_runs
from metier.cli.shared.options import Config, Events, RunName, Verbose
from metier.cli.shared.output import warn_line
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.ids import get_user
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.history.follower import Follower, follow
from metier.runtime.questions.answers import Answer
from metier.runtime.queue.detached import get_owner
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.status import FAILED, get_status
from metier.telemetry.sinks import Sink
from metier.views.user_question import UserQuestion


async def _finish(runtime: Runtime, run_id: str, sink: Sink) -> int:
    state = await runtime.read(run_id)
    if isinstance(sink, ShownRun):
        sink.answer = state.result
    sink.close()
    return await get_code(runtime, state)


async def get_code(runtime: Runtime, state: RunState) -> int:
    """The exit code of a command that had driven the run to where it is."""
    if state.status == "in_progress":
        sys.stderr.write(f"This run's process is gone; resume it with `agent resume {state.run_id}`\n")
        return FAILED
    return (await get_status(runtime.store, state)).exit_code()


def attach(app: typer.Typer) -> None:
    app.command("attach")(attach_run)


def attach_run(run: RunName, *, verbose: Verbose = 0, events: Events = False, config: Config = None) -> int:
    """Follow a run and answer its questions.

    Without a terminal it asks nothing. Exit codes are those of `agent run`.
    """
    host = open_host(config)
    sink = build_reader(build_host_redactor(host), verbosity=EVENTS if events else verbose, as_json=False)
    prompter = find_asker()

    async def work() -> int:
        async with open_runtime(host) as runtime:
            run_id = (await runtime.find(run)).run_id
            with closing(Follower(runtime, run_id)) as follower:
                while True:
                    with ticking(sink):
                        await follow(follower, sink)
                    state = await runtime.read(run_id)
                    if state.phase in FINAL or prompter is None or not await answer_run(runtime, state, prompter):
                        return await _finish(runtime, run_id, sink)

    return anyio.run(work)


async def answer_run(runtime: Runtime, state: RunState, prompter: Prompter) -> bool:
    """Put what the run waits for to the user, and have a worker go on; False where nothing was answered."""
    status = await get_status(runtime.store, state)
    owner = await get_owner(runtime, state.run_id)
    if not status.pause or not owner.queue:
        return False
    if status.pause == "approval":
        question = await runtime.approvals.get(status.approval_ids[0])
        reply = await prompter(question)
        if reply is None:
            return False
        await runtime.approvals.decide(question, reply)
        await build_local_runs(runtime, None).continue_decided(status.waiting.run_id)
    elif status.pause == "input" and status.question is not None:
        answer = await _ask(status.question, prompter)
        if answer is None:
            return False
        await build_local_runs(runtime, None).answer(owner.run_id, answer)
    else:
        return False
    return True


async def _ask(question: UserQuestion, prompter: Prompter) -> Answer | None:
    warn_line(question.text)
    try:
        given = [f"{name}={await prompter.read_line(f'{name}> ')}" for name in question.names]
    except (EOFError, KeyboardInterrupt):
        return None
    return Answer(values=parse_inputs(given, question.fields), by=get_user())
