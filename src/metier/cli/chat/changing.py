"""Commands of a chat that change something: who answers, what was said, files, facts."""

from dataclasses import replace
from pathlib import Path

from metier.cli.chat.desk import Desk
from metier.cli.chat.export import render_markdown
from metier.cli.shared.output import printable, warn_line, write_line
from metier.errors import UsageError
from metier.ids import find_user
from metier.runtime.chat.chats import list_chats
from metier.runtime.history.undo import CANNOT, UndoPlan, plan_undo
from metier.runtime.history.undo import undo as undo_files
from metier.telemetry.excerpt import one_line

_LISTED = 10
_SHOWN = 70


async def choose_model(desk: Desk, name: str) -> None:
    if name:
        await desk.chat.use_model(name)
        warn_line(f"The next turn is answered by {name}")
        return
    current = desk.chat.answered_by
    for choice in desk.chat.list_models():
        write_line(f"{'*' if choice == current else ' '} {choice}")


async def choose_agent(desk: Desk, name: str) -> None:
    if name:
        await desk.chat.use_agent(name)
        warn_line(f"The next turn is answered by agent {name}, with {desk.chat.answered_by}")
        return
    listed = desk.chat.list_agents()
    for agent in listed:
        write_line(f"{'*' if agent == desk.chat.agent_id else ' '} {agent}")
    if not listed:
        warn_line("This workspace defines no agents; the built-in one answers")


async def approve(desk: Desk, approval: str) -> None:
    found = [each for each in await desk.chat.find_approvals() if each.row.approval_id.startswith(approval)]
    if not found:
        warn_line("Nothing waits for a decision in this conversation")
        return
    for number, question in enumerate(found, start=1):
        reply = await desk.ask(replace(question, number=number, total=len(found)))
        if reply is None:
            warn_line("Left undecided")
            return
        await desk.chat.runtime.approvals.decide(question, reply)
    await desk.drive(lambda watch: desk.chat.go_on(watch=watch))


async def go_on(desk: Desk, _: str) -> None:
    if await desk.chat.find_open_turn() is None and await desk.chat.find_reopenable() is None:
        warn_line("The last turn has ended; there is nothing to go on with")
        return
    await desk.drive(lambda watch: desk.chat.go_on(watch=watch))


async def compact(desk: Desk, _: str) -> None:
    count = await desk.chat.compact()
    warn_line(f"Summed up: {count} turns" if count else "There is nothing to sum up yet")


async def clear(desk: Desk, _: str) -> None:
    before = desk.chat.context_id
    desk.chat.begin_anew()
    desk.turns.forget()
    await desk.turns.load_spent()
    warn_line(f"New conversation {desk.chat.context_id}; `/resume {before}` goes back")


async def resume(desk: Desk, wanted: str) -> None:
    chats = await list_chats(desk.chat.runtime, limit=_LISTED)
    if not wanted:
        for number, state in enumerate(chats, start=1):
            runs = await desk.chat.runtime.store.list_runs(context_id=state.context_id, limit=1)
            said = one_line(runs[0].task, _SHOWN) if runs else ""
            mark = "*" if state.context_id == desk.chat.context_id else " "
            write_line(f"{mark}{number:>2}  {state.context_id}  {said}")
        if not chats:
            warn_line("There are no conversations here yet")
        return
    chosen = chats[int(wanted) - 1].context_id if wanted.isdecimal() and 0 < int(wanted) <= len(chats) else wanted
    await desk.chat.switch(chosen)
    desk.turns.forget()
    await desk.turns.load_spent()
    warn_line(f"Conversation {chosen}, answered by {desk.chat.answered_by}")
    await desk.turns.show_past()


async def undo(desk: Desk, what: str) -> None:
    """The talk, the files, or both. A person is asked which; a program takes back the talk."""
    run_id = await desk.chat.find_last_turn()
    plan = await plan_undo(desk.chat.runtime, run_id) if run_id else None
    has_files = plan is not None and bool(plan.waiting)
    chosen = what or (await _ask_what(desk, plan) if plan is not None and has_files and desk.is_terminal else "talk")
    if chosen not in ("talk", "files", "both"):
        raise UsageError(f"{chosen!r} cannot be taken back", hint="Use `/undo talk`, `/undo files` or `/undo both`")
    if chosen in ("files", "both"):
        if plan is None or not has_files:
            warn_line("The last turn left no file different from what it was before")
        else:
            await _put_back(desk, plan)
    if chosen in ("talk", "both"):
        turn = await desk.chat.undo()
        warn_line(f"Taken back: {' '.join(turn.said.split())[:80]} (its journal stays, run {turn.run_id})")


async def _ask_what(desk: Desk, plan: UndoPlan) -> str:
    for file in plan.waiting:
        mark = "  changed since" if file.is_conflict else ""
        warn_line(f"  {file.verb}: {printable(file.path)}{mark}")
    word = (await desk.read("Take back [t]alk, [f]iles, [b]oth, or [n]othing: ")).strip().lower()
    chosen = {"t": "talk", "talk": "talk", "f": "files", "files": "files", "b": "both", "both": "both"}.get(word)
    if chosen is None:
        raise UsageError("Nothing was taken back")
    return chosen


async def _put_back(desk: Desk, plan: UndoPlan) -> None:
    overwrite = False
    if plan.conflicts:
        for file in plan.conflicts:
            warn_line(f"{printable(file.path)} changed since:")
            for line in file.diff.splitlines()[:40]:
                warn_line(f"    {printable(line)}")
        word = await desk.read(f"Put back {len(plan.conflicts)} files that changed since? [y]es  [n]o: ")
        overwrite = word.strip().lower() in ("y", "yes")
    done = await undo_files(desk.chat.runtime, plan, by=find_user(), overwrite=overwrite)
    warn_line(f"{done.undo_id}: {len(done.restored)} files are what they were before the turn")
    for line in done.left_alone:
        warn_line(f"left alone: {printable(line)}")
    warn_line(CANNOT)


async def remember(desk: Desk, text: str) -> None:
    fact = await desk.chat.remember(text)
    warn_line(f"Kept as {fact.key!r}")


async def forget(desk: Desk, key: str) -> None:
    await desk.chat.forget(key)
    warn_line(f"Forgotten: {key}")


async def export(desk: Desk, name: str) -> None:
    text = await render_markdown(desk.chat)
    if not name:
        write_line(text)
        return
    try:
        _write_new(Path(name), text)
    except FileExistsError as error:
        raise UsageError(f"File {name!r} is there already", hint="Name another one") from error
    except OSError as error:
        raise UsageError(f"File {name!r} cannot be written: {error.strerror}") from error
    warn_line(f"Written to {name}")


def _write_new(file: Path, text: str) -> None:
    with file.expanduser().open("x", encoding="utf-8") as opened:
        opened.write(text + "\n")
