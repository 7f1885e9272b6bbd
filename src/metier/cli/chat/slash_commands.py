"""The slash commands of a chat: one function each, and the table at the end."""

import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

from anyio.to_thread import run_sync
from msgspec import Struct
from rich.text import Text

from metier.approval.scopes import ScopeReader
from metier.cli.chat.list_chats import list_chats_with_messages
from metier.cli.chat.permission_modes import SUMMARIES, PermissionModes, list_modes
from metier.cli.chat.turn_view import TurnView
from metier.cli.config import change_setting, report_change
from metier.cli.cost import print_totals
from metier.cli.mcp import examine, write_server_status
from metier.cli.shared.clipboard import copy_text
from metier.cli.shared.context import current_settings
from metier.cli.shared.output import printable, warn_line, write_line
from metier.definitions.nearest import hint_nearest
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.ids import get_user
from metier.prompts.texts import load_text
from metier.runtime.approval_questions import Asker
from metier.runtime.build import list_all_tools
from metier.runtime.chat.chats import Chat, list_always, list_chats
from metier.runtime.chat.commands import check_trusted, list_own_commands
from metier.runtime.cleaning import build_host_cleaner, build_host_redactor
from metier.runtime.driver import DriveOptions
from metier.runtime.history.run_views import read_run_view
from metier.runtime.history.spending import read_conversation_spending
from metier.runtime.history.undo import CANNOT, UndoPlan, plan_undo
from metier.runtime.history.undo import undo as undo_files
from metier.settings.setting_values import get_value, render_value
from metier.telemetry.amounts import format_cost, format_count, format_tokens
from metier.telemetry.excerpt import one_line
from metier.tools.files.snapshots import Unavailable, find_repository, run_git
from metier.version import __version__
from metier.views.diff import build_diff, build_step_diff, render_diff
from metier.views.painter import build_painter
from metier.views.run_view import ContextUse
from metier.views.screen_lines import fit
from metier.views.spending import Grouping, group_spending

_LISTED_CHATS = 10
_WIDTH = 90
_LAYER_BAR_WIDTH = 30
_DIFF_LINES = 400
_NEW_FILES = 50
_NEW_FILE_BYTES = 200_000
_GIT_HEADER = re.compile(r"diff --git |index [0-9a-f]+\.\.|(?:new|deleted) file mode |(?:old|new) mode ")
_PROFILES = {
    "permissive": "allows everything unless a rule asks or denies",
    "guarded": "asks before every change, unless a rule allows it",
    "strict": "asks like guarded, and runs commands in a sandbox",
}

type Turn = Callable[[DriveOptions], Awaitable[RunState | None]]
"""Runs a turn. Returns None if there is no turn to run."""


class ChatContext(Struct, frozen=True, kw_only=True):
    """The parts of a chat that commands use."""

    chat: Chat
    ask: Asker
    drive: Callable[[Turn], Awaitable[None]]
    turns: TurnView
    read: Callable[[str], Awaitable[str]]
    """Ask for one line. Raises `EOFError` at the end of the input."""
    modes: PermissionModes
    is_terminal: bool = False


class ExitChat(Exception):
    """Raised to end the chat."""


class Command(NamedTuple):
    summary: str
    run: Callable[[ChatContext, str], Awaitable[None]]
    takes: str = ""
    is_free: bool = False
    """The command changes nothing, so it can be used during a turn."""


async def run_command(context: ChatContext, line: str) -> None:
    """Run a command. Raises `ExitChat`, and `UsageError` for an unknown command."""
    name, _, rest = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    host = context.chat.runtime.host
    own = list_own_commands(host)
    if command is not None and not (name in REPLACEABLE and name in own):
        await command.run(context, rest.strip())
        return
    if name in own:
        message = own[name].fill(rest.strip())
        await context.drive(lambda watch: context.chat.send(message, watch, is_typed=False))
        return
    check_trusted(host, name)
    hint = hint_nearest(name, (*COMMANDS, *own)) or "Type `/help`, or start a message with `//` to send a slash"
    raise UsageError(f"No such command '/{name}'", hint=hint)


def runs_at_once(line: str) -> bool:
    """Return whether the command can be used during a turn."""
    name = line.strip().removeprefix("/").partition(" ")[0]
    command = COMMANDS.get(ALIASES.get(name, name))
    return line.startswith("/") and not line.startswith("//") and command is not None and command.is_free


def list_commands(chat: Chat) -> list[tuple[str, str]]:
    """List names and summaries, with those of the workspace last."""
    own = list_own_commands(chat.runtime.host)
    listed = [(name, command.summary) for name, command in COMMANDS.items()]
    return listed + [(name, command.description) for name, command in own.items() if name not in COMMANDS]


async def _help(context: ChatContext, _: str) -> None:
    for name, command in COMMANDS.items():
        usage = f"/{name} {command.takes}".rstrip()
        write_line(f"{usage:<24} {command.summary}")
    own = list_own_commands(context.chat.runtime.host)
    for name, command in own.items():
        write_line(f"{f'/{name}':<24} {command.description}")
    write_line()
    for line in KEYS:
        write_line(line)


async def _quit(_: ChatContext, __: str) -> None:
    raise ExitChat


async def show_skills(context: ChatContext, name: str) -> None:
    packages = context.chat.resolve().packages
    chosen = [package for package in packages if package.definition.name.startswith(name)]
    if name and not chosen:
        known = [package.definition.name for package in packages]
        raise UsageError(f"No skill is called {name!r}", hint=hint_nearest(name, known) or "Type `/skills`")
    for package in chosen:
        write_line(f"{package.definition.name:<22} {' '.join(package.definition.description.split())}")
    if not packages:
        warn_line("This agent has no skills")


async def show_tools(context: ChatContext, name: str) -> None:
    agent = context.chat.resolve()
    tools = agent.choose_tools(list_all_tools(agent.packages, agent.host, web=agent.web))
    chosen = [tool.info for tool in tools if tool.info.name.casefold().startswith(name.casefold())]
    if name and not chosen:
        known = [tool.info.name for tool in tools]
        raise UsageError(f"No tool is called {name!r}", hint=hint_nearest(name, known) or "Type `/tools`")
    room = max(20, build_painter(sys.stdout).width - 36)
    for info in chosen:
        about = info.description if name else one_line(info.description, room)
        write_line(f"{info.name:<22} {info.risk or '-':<10} {about}")


async def show_cost(context: ChatContext, by: str) -> None:
    known = get_args(Grouping)
    if by and by not in known:
        raise UsageError(f"Cannot group cost by {by!r}", hint=f"Use one of {', '.join(known)}")
    spent = await read_conversation_spending(context.chat.runtime, context.chat.context_id)
    grouping: Grouping = by if by in ("agent", "skill", "task", "day") else "model"
    totals = group_spending(spent, grouping)
    if not totals:
        warn_line("No model calls in this conversation yet")
        return
    print_totals(totals)


async def show_context(context: ChatContext, _: str) -> None:
    used = await context.turns.get_context()
    if not used.limit:
        warn_line("No model calls in this conversation yet")
        return
    painter = build_painter(sys.stdout)
    painter.print(*_render_context(used, width=min(painter.width, _WIDTH)))


def _render_context(used: ContextUse, *, width: int) -> list[Text]:
    """Render a line per layer, the largest first."""
    limit = max(used.limit, 1)
    rows = [*used.layers, *([("tool descriptions", used.tool_schema_tokens)] if used.tool_schema_tokens else [])]
    rows = sorted((row for row in rows if row[1]), key=lambda row: -row[1])
    room = max((len(name) for name, _ in rows), default=0)
    bar_width = max(0, min(_LAYER_BAR_WIDTH, width - room - 22))
    lines = [
        Text(f"{format_tokens(used.tokens)} of {format_tokens(used.limit)} tokens, {100 * used.tokens / limit:.0f} %")
    ]
    for name, tokens in rows:
        # At least one cell, so that a small layer is visible.
        filled = min(bar_width, round(bar_width * tokens / limit) or 1)
        line = Text.assemble(
            f"{name:<{room}}  ",
            ("█" * filled, "green"),
            ("░" * (bar_width - filled), "dim"),
            f"  {format_tokens(tokens):>6}  {100 * tokens / limit:>3.0f} %",
        )
        lines.append(fit(line, width))
    return lines


async def show_permissions(context: ChatContext, mode: str) -> None:
    """Show the profile, the permission modes, the rules of the workspace and the saved approvals."""
    agent = context.chat.resolve()
    host = agent.host
    if mode:
        context.modes.choose(mode, agent.profile)
        warn_line(f"Permission mode {context.modes.mode}: {SUMMARIES[context.modes.mode]}")
        return
    write_line(f"profile {agent.profile}: {_PROFILES[agent.profile]}")
    for each in list_modes(agent.profile):
        write_line(f"{'*' if each == context.modes.mode else ' '} mode {each}: {SUMMARIES[each]}")
    reader = ScopeReader(root=str(host.workspace))
    rules = reader.read_policy(read_policy_file(host.workspace).decode("utf-8", "replace"), file=POLICY_FILE)
    for rule in rules.tools.rules:
        when = ", ".join(condition.key for condition in rule.when)
        about = f" by {when}" if when else ""
        write_line(f"{rule.decision:<6} {rule.subject}{about}  {rule.reason}  ({rule.location})".rstrip())
    if not rules.tools.rules:
        write_line(f"no rules in {POLICY_FILE}")
    for key in await list_always(context.chat):
        write_line(f"allow  {one_line(key, _WIDTH)}  (always in this conversation)")
    write_line("To explain a decision, run `agent policy explain TOOL --args JSON`")


async def show_servers(context: ChatContext, _: str) -> None:
    # Without starting them: `examine` would run an event loop of its own for that, and one is running here.
    statuses = examine(context.chat.runtime.host)
    for status in statuses:
        write_server_status(status)
    if not statuses:
        warn_line(f"No MCP servers configured in '{context.chat.runtime.host.settings.mcp.file}'")


async def show_facts(context: ChatContext, _: str) -> None:
    facts = await context.chat.list_facts()
    for fact in facts:
        write_line(f"{fact.key}: {fact.text}{'' if fact.is_own else '  (learned in passing)'}")
    if not facts:
        warn_line("No facts saved; add one with `/remember name: fact`")


async def choose_model(context: ChatContext, name: str) -> None:
    if name:
        await context.chat.use_model(name)
        warn_line(f"Model: {name}")
        return
    current = context.chat.answered_by
    for choice in context.chat.list_models():
        write_line(f"{'*' if choice == current else ' '} {choice}")


async def choose_agent(context: ChatContext, name: str) -> None:
    if name:
        await context.chat.use_agent(name)
        warn_line(f"Agent: {name}, model: {context.chat.answered_by}")
        return
    listed = context.chat.list_agents()
    for agent in listed:
        write_line(f"{'*' if agent == context.chat.agent_id else ' '} {agent}")
    if not listed:
        warn_line("No agents defined; the chat uses the built-in agent")


async def approve(context: ChatContext, approval: str) -> None:
    found = [each for each in await context.chat.find_approvals() if each.row.approval_id.startswith(approval)]
    if not found:
        warn_line("No pending approvals in this conversation")
        return
    for number, question in enumerate(found, start=1):
        reply = await context.ask(replace(question, number=number, total=len(found)))
        if reply is None:
            warn_line("Not decided")
            return
        await context.chat.runtime.approvals.decide(question, reply)
    await context.drive(lambda watch: context.chat.continue_turn(watch=watch))


async def continue_turn(context: ChatContext, _: str) -> None:
    if await context.chat.find_open_turn() is None and await context.chat.find_reopenable() is None:
        warn_line("Nothing to continue: the last turn has ended")
        return
    await context.drive(lambda watch: context.chat.continue_turn(watch=watch))


async def compact(context: ChatContext, _: str) -> None:
    turns = await context.chat.compact()
    warn_line(f"Summarized {format_count(turns, 'turn')}" if turns else "Nothing to summarize yet")


async def clear(context: ChatContext, _: str) -> None:
    before = context.chat.context_id
    context.chat.start_new()
    context.turns.forget()
    await context.turns.load_spent()
    warn_line(f"New conversation {context.chat.context_id}; return with `/resume {before}`")


async def resume(context: ChatContext, wanted: str) -> None:
    chats = await list_chats(context.chat.runtime, limit=_LISTED_CHATS)
    if not wanted:
        width = build_painter(sys.stdout).width - 6
        listed = await list_chats_with_messages(context.chat.runtime, limit=_LISTED_CHATS)
        for number, each in enumerate(listed, start=1):
            mark = "*" if each.context_id == context.chat.context_id else " "
            write_line(f"{mark}{number:>2}  {each.render(width=width)}")
        if not listed:
            warn_line("No conversations yet")
        return
    chosen = chats[int(wanted) - 1].context_id if wanted.isdecimal() and 0 < int(wanted) <= len(chats) else wanted
    await context.chat.switch(chosen)
    context.turns.forget()
    await context.turns.load_spent()
    warn_line(f"Conversation {chosen}, model: {context.chat.answered_by}")
    await context.turns.show_past()


async def undo(context: ChatContext, what: str) -> None:
    """Undo the last turn's messages, files or both. Without a terminal to ask at, only the messages."""
    run_id = await context.chat.get_last_turn()
    plan = await plan_undo(context.chat.runtime, run_id) if run_id else None
    has_files = plan is not None and bool(plan.waiting)
    chosen = what or (
        await _ask_what(context, plan) if plan is not None and has_files and context.is_terminal else "talk"
    )
    if chosen not in ("talk", "files", "both"):
        raise UsageError(f"Cannot undo {chosen!r}", hint="Use `/undo talk`, `/undo files` or `/undo both`")
    if chosen in ("files", "both"):
        if plan is None or not has_files:
            warn_line("The last turn changed no files")
        else:
            await _restore_files(context, plan)
    if chosen in ("talk", "both"):
        turn = await context.chat.undo()
        warn_line(f"Undone: {' '.join(turn.said.split())[:80]} (the journal of run {turn.run_id} stays)")


async def _ask_what(context: ChatContext, plan: UndoPlan) -> str:
    for file in plan.waiting:
        mark = "  changed since" if file.is_conflict else ""
        warn_line(f"  {file.verb}: {printable(file.path)}{mark}")
    word = (await context.read("Undo the [t]alk, its [f]iles, [b]oth or [n]othing: ")).strip().lower()
    chosen = {"t": "talk", "talk": "talk", "f": "files", "files": "files", "b": "both", "both": "both"}.get(word)
    if chosen is None:
        raise UsageError("Nothing was undone")
    return chosen


async def _restore_files(context: ChatContext, plan: UndoPlan) -> None:
    overwrite = False
    if plan.conflicts:
        for file in plan.conflicts:
            warn_line(f"{printable(file.path)} changed since:")
            for line in file.diff.splitlines()[:40]:
                warn_line(f"    {printable(line)}")
        word = await context.read(
            f"Restore {format_count(len(plan.conflicts), 'file')} that changed since? [y]es  [n]o: "
        )
        overwrite = word.strip().lower() in ("y", "yes")
    done = await undo_files(context.chat.runtime, plan, by=get_user(), overwrite=overwrite)
    warn_line(f"{done.undo_id}: {format_count(len(done.restored), 'file')} restored to the state before the turn")
    for line in done.left_alone:
        warn_line(f"skipped:    {printable(line)}")
    warn_line(CANNOT)


async def remember(context: ChatContext, text: str) -> None:
    fact = await context.chat.remember(text)
    warn_line(f"Saved as {fact.key!r}")


async def forget(context: ChatContext, key: str) -> None:
    await context.chat.forget(key)
    warn_line(f"Forgotten: {key}")


async def write_instructions(context: ChatContext, _: str) -> None:
    """Let the model write `AGENTS.md`. Its changes are approved like others."""
    await _ask_model(context, load_text("commands/init"))


async def review(context: ChatContext, what: str) -> None:
    subject = f"Review: {what}" if what else "Review: everything that is not committed"
    await _ask_model(context, f"{load_text('commands/review')}\n\n{subject}")


async def _ask_model(context: ChatContext, message: str) -> None:
    await context.drive(lambda watch: context.chat.send(message, watch, is_typed=False))


async def show_diff(context: ChatContext, path: str) -> None:
    """Show uncommitted changes; outside a git repository, the changes of this conversation."""
    workspace = context.chat.runtime.host.root
    redactor = build_host_redactor(context.chat.runtime.host)
    painter = build_painter(sys.stdout)
    if find_repository(workspace) is None:
        unified = await _collect_changes(context.chat)
    else:
        # In a thread: git may take seconds, and the prompt and a running turn need the event loop.
        unified = await run_sync(_read_git_diff, workspace, path)
    if not unified.strip():
        warn_line("No changes")
        return
    painter.print(*render_diff(redactor.redact(unified), width=painter.width, most=_DIFF_LINES))


async def _collect_changes(chat: Chat) -> str:
    views = [await read_run_view(chat.runtime, state.run_id) for state, _ in await chat.list_turns()]
    steps = (step for view in views for run in view.walk() for step in run.steps if step.state == "succeeded")
    return "\n".join(change.rstrip("\n") for step in steps if (change := build_step_diff(step)))


def _read_git_diff(workspace: Path, path: str) -> str:
    """Diff the work tree with the last commit, and add new files. No program that the repository names is run."""
    limited = ("--", path) if path else ()
    shown = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-prefix", "--ignore-submodules")
    try:
        # Before the first commit there is no HEAD, and the diff is that with the index.
        has_commit = run_git(workspace, ("rev-parse", "--verify", "-q", "HEAD"), allowed=(0, 1))
        changed = run_git(workspace, ("diff", *shown, *(["HEAD"] if has_commit else []), *limited))
        # `-z`, because a file name may contain line breaks.
        new = run_git(workspace, ("ls-files", "--others", "--exclude-standard", "-z", *limited))
    except Unavailable as error:
        raise UsageError(f"Cannot read the changes: {error}") from error
    # Headers such as `diff --git` and `index` add nothing to the file names.
    lines = [line for line in changed.decode("utf-8", "replace").splitlines() if not _GIT_HEADER.match(line)]
    names = [os.fsdecode(each) for each in new.split(b"\0") if each][:_NEW_FILES]
    lines += [_render_new_file(workspace / name, name) for name in names]
    return "\n".join(lines)


def _render_new_file(file: Path, name: str) -> str:
    try:
        is_shown = file.is_file() and not file.is_symlink() and file.stat().st_size <= _NEW_FILE_BYTES
        text = file.read_bytes().decode("utf-8") if is_shown else ""
    # A binary file, or one that was deleted meanwhile: only its name is shown.
    except (OSError, UnicodeDecodeError):
        text = ""
    return build_diff("", text, path=name) or f"--- {name}\n+++ {name} (new)"


async def copy_answer(context: ChatContext, _: str) -> None:
    """Copy the last answer as Markdown, with secrets redacted."""
    answers = [turn.answer for _, turn in await context.chat.list_turns() if turn.answer.strip()]
    if not answers:
        warn_line("No answer to copy yet")
        return
    host = context.chat.runtime.host
    ways = await run_sync(partial(copy_text, build_host_cleaner(host).text(answers[-1]), workspace=host.workspace))
    if not ways:
        raise UsageError("No clipboard found", hint="Use `/export FILE`, or install wl-clipboard or xclip")
    warn_line(f"Copied {format_count(len(answers[-1]), 'character')} to the clipboard ({' and '.join(ways)})")


async def show_status(context: ChatContext, _: str) -> None:
    chat, host = context.chat, context.chat.runtime.host
    agent = chat.resolve()
    used = await context.turns.get_context()
    turns = await chat.list_turns()
    mode = context.modes.mode if context.modes.mode in list_modes(agent.profile) else ""
    cost = await chat.find_cost()
    rows = {
        "version": __version__,
        "workspace": f"{host.workspace} ({'trusted' if host.trust.is_trusted else 'not trusted: see `agent trust`'})",
        "conversation": f"{chat.context_id}, {format_count(len(turns), 'turn')}",
        "agent": agent.definition.name if agent.definition else "built-in agent",
        "model": f"{chat.answered_by} ({agent.model.provider})",
        "permissions": f"{agent.profile}{f', mode {mode}' if mode else ''}: {_PROFILES[agent.profile]}",
        "context": f"{format_tokens(used.tokens)} of {format_tokens(used.limit)} tokens" if used.limit else "empty",
        "cost": format_cost(cost),
        "runs": str(host.runs),
    }
    for name, value in rows.items():
        write_line(f"{name:<14} {printable(value)}")


async def configure(_: ChatContext, given: str) -> None:
    """Show the settings that are not the default, or one; with a value, change it for later runs."""
    key, *value = given.split(maxsplit=1) or [""]
    if value:
        report_change(change_setting(key, value[0], mine=False))
        warn_line("The change applies to the next chat")
        return
    loaded = current_settings(None, {})
    shown = [
        each for each in loaded.origins if (each.startswith(key) if key else loaded.origins[each].kind != "default")
    ]
    if key and not shown:
        raise UsageError(
            f"Unknown setting {key!r}", hint=hint_nearest(key, loaded.origins) or "Run `agent config show`"
        )
    for each in shown:
        write_line(f"{each:<32} {render_value(get_value(loaded.settings, each)):<24} {loaded.origins[each].render()}")
    write_line(f"file: {loaded.file}" if loaded.file else "No settings file; everything else is the default")


async def export(context: ChatContext, name: str) -> None:
    text = await render_markdown(context.chat)
    if not name:
        write_line(text)
        return
    try:
        _write_new(Path(name), text)
    except FileExistsError as error:
        raise UsageError(f"File {name!r} already exists", hint="Choose another name") from error
    except OSError as error:
        raise UsageError(f"Cannot write {name!r}: {error.strerror}") from error
    warn_line(f"Wrote {name}")


def _write_new(file: Path, text: str) -> None:
    # Fails for an existing file, and also for a link without a target.
    with file.expanduser().open("x", encoding="utf-8") as opened:
        opened.write(text + "\n")


async def render_markdown(chat: Chat) -> str:
    """Render the conversation as Markdown, without undone turns and with secrets redacted."""
    clean = build_host_cleaner(chat.runtime.host).text
    lines = [f"# Conversation {chat.context_id}", ""]
    facts = await chat.list_facts()
    if facts:
        lines += ["## Facts", "", *(f"- {fact.key}: {fact.text}" for fact in facts), ""]
    for number, (state, turn) in enumerate(await chat.list_turns(), start=1):
        who = state.started.agent if state.started else ""
        model = state.started.model if state.started else "no model"
        lines += [f"## Turn {number}", "", f"_Run {state.run_id}, model {model}_", ""]
        lines += ["**You:**", "", clean(turn.said), ""]
        lines += [*(f"- {clean(note)}" for note in turn.notes), *([""] if turn.notes else [])]
        lines += [f"**{who or 'Agent'}:**", "", clean(turn.answer), ""]
    return "\n".join(lines).rstrip()


KEYS = (
    "Enter sends. Esc-Enter, or a backslash at the end of a line, starts a new line.",
    "Ctrl-G opens your editor, Ctrl-R searches earlier messages, Ctrl-Z suspends the program.",
    "Shift-Tab changes the permission mode: ask, accept edits, plan, auto.",
    "Esc or Ctrl-C stops the turn, Ctrl-D exits.",
    "Ctrl-O shows the last step in full; press it again for the step before.",
    "`!command` runs a shell command, `@path` attaches a file.",
    "Messages sent during a turn steer it; commands that only show something run at once.",
    "Start a message with // to send a slash.",
)
COMMANDS: dict[str, Command] = {
    "help": Command("Show this help.", _help, is_free=True),
    "model": Command("List the models, or choose one.", choose_model, "[name]"),
    "agent": Command("List the agents, or choose one.", choose_agent, "[name]"),
    "skills": Command("List the agent's skills.", show_skills, "[name]", is_free=True),
    "tools": Command("List the agent's tools with their risk.", show_tools, "[name]", is_free=True),
    "cost": Command("Show token usage and cost.", show_cost, "[model|skill|day]", is_free=True),
    "context": Command("Show how the context window is used.", show_context, is_free=True),
    "compact": Command("Summarize the conversation to free up context.", compact),
    "clear": Command("Start a new conversation; this one is saved.", clear),
    "undo": Command("Undo the last turn: its messages, files or both.", undo, "[talk|files|both]"),
    "approve": Command("Decide pending approvals and continue.", approve, "[id]"),
    "continue": Command("Continue a stopped turn.", continue_turn),
    "permissions": Command(
        "Show permissions, or choose a permission mode.",
        show_permissions,
        "[mode]",
        is_free=True,
    ),
    "mcp": Command("Show the MCP servers.", show_servers, is_free=True),
    "resume": Command("List conversations, or open one.", resume, "[number|id]"),
    "facts": Command("Show the saved facts.", show_facts, is_free=True),
    "remember": Command("Save a fact.", remember, "[name:] fact"),
    "forget": Command("Delete a fact.", forget, "name"),
    "init": Command("Write AGENTS.md: instructions for this workspace.", write_instructions),
    "review": Command("Review changes: uncommitted ones, a branch or a commit.", review, "[what]"),
    "diff": Command("Show uncommitted changes.", show_diff, "[path]", is_free=True),
    "copy": Command("Copy the last answer to the clipboard.", copy_answer, is_free=True),
    "status": Command("Show workspace, model, permissions, context and cost.", show_status, is_free=True),
    "config": Command("Show settings, or change one.", configure, "[key [value]]", is_free=True),
    "export": Command("Export the conversation as Markdown.", export, "[file]"),
    "quit": Command("Exit; the conversation is saved.", _quit, is_free=True),
}
# Workspaces had commands of these names before the chat did.
REPLACEABLE = frozenset({"init", "review"})
ALIASES = {
    "exit": "quit",
    "q": "quit",
    "?": "help",
    "approvals": "approve",
    "new": "clear",
    "usage": "cost",
    "sessions": "resume",
    "settings": "config",
}
