"""Save "always" as a rule of the workspace: the person sees the rule before it is written."""

from collections.abc import Awaitable, Callable

from pydantic import JsonValue

from metier.cli.shared.context import current_directory
from metier.cli.shared.new_file import write_new_file
from metier.cli.shared.output import warn_line
from metier.cli.trust import renew_trust, speaks_for_person
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.errors import MetierError
from metier.runtime.workspace.saved_rules import add_rule, build_rule

type ReadLine = Callable[[str], Awaitable[str]]


async def save_rule(tool: str, arguments: dict[str, JsonValue], *, read_line: ReadLine) -> bool:
    """False where nothing was written. The run under way keeps the rules that it began with."""
    workspace = current_directory()
    rule = build_rule(tool, arguments)
    try:
        policy = read_policy_file(workspace).decode("utf-8")
        text = add_rule(policy, rule, file=POLICY_FILE, root=str(workspace))
    except (MetierError, UnicodeDecodeError) as error:
        warn_line(error.message if isinstance(error, MetierError) else f"{POLICY_FILE} is not UTF-8")
        if isinstance(error, MetierError) and error.hint:
            warn_line(error.hint)
        return False
    warn_line(f"This goes to the end of {POLICY_FILE}, and holds for every run here from now on:")
    warn_line("")
    for line in rule.splitlines():
        warn_line(f"    {line}")
    warn_line("")
    if (await read_line("Write it? [y]es  [n]o: ")).strip().lower() not in ("y", "yes"):
        warn_line("Not written")
        return False
    is_own = speaks_for_person(workspace)
    try:
        write_new_file(workspace / POLICY_FILE, text, overwrite=True)
    except MetierError as error:
        warn_line(error.message)
        return False
    if is_own:
        renew_trust(workspace)
    else:
        warn_line("This folder is not trusted, so what its rules allow does not count yet; see `agent trust`")
    warn_line(f"Written to {POLICY_FILE}")
    return True
