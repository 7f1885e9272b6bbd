"""`agent skills`: the table of its commands, and `list`, which also runs without a command."""

from typing import Annotated

import typer

from metier.cli.root import ADVANCED
from metier.cli.shared.command_options import AsJson, CommandGroup, SkillsDir
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill import packages, validation
from metier.cli.skill.add import add, search
from metier.cli.skill.route import route
from metier.cli.skill.show import info, inspect, show
from metier.cli.skill.skill_status import Row, list_usable
from metier.cli.skill.test import run, try_out
from metier.cli.skill.workspace_skills import open_places, scan_skills
from metier.errors import UsageError
from metier.telemetry.excerpt import one_line

app = typer.Typer(
    cls=CommandGroup,
    rich_markup_mode=None,
    add_completion=False,
    help="List, add, trust and manage skills.",
)
for name, command in {
    "add": add,
    "search": search,
    "enable": packages.enable,
    "disable": packages.disable,
    "show": show,
    "route": route,
    "create": packages.create,
    "test": try_out,
    "validate": validation.validate,
    "update": packages.update,
    "remove": packages.remove,
    "trust": packages.trust,
    "untrust": packages.untrust,
    "verify": packages.verify,
    "lock": packages.lock,
}.items():
    app.command(name)(command)
# Options after the script's name belong to the script.
app.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(run)
app.command("contracts", rich_help_panel=ADVANCED)(validation.contracts)
app.command("check-sync", rich_help_panel=ADVANCED)(validation.check_sync)
app.command("to-prompt", rich_help_panel=ADVANCED)(validation.to_prompt)
app.command("info", hidden=True)(info)
app.command("inspect", hidden=True)(inspect)

_WIDTH = 100


@app.callback(invoke_without_command=True)
def skills(ctx: typer.Context) -> None:
    """List, add, trust and manage skills."""
    if ctx.invoked_subcommand is None:
        _write(list(list_usable(scan_skills(open_places(None))).rows))


@app.command("list")
def list_skills(
    *,
    skills_dir: SkillsDir = None,
    with_all: Annotated[bool, typer.Option("--all", help="Also print inactive skills to stdout.")] = False,
    only_active: Annotated[bool, typer.Option("--active", help="List only active skills.")] = False,
    as_json: AsJson = False,
) -> None:
    """List skills."""
    if with_all and only_active:
        raise UsageError("--all and --active are mutually exclusive", hint="Use one of them")
    found = list_usable(scan_skills(open_places(skills_dir)))
    rows = [row for row in found.rows if row["active"] or not only_active]
    if as_json:
        write_json(rows)
    else:
        _write(rows, with_all=with_all)
    for problem in found.problems:
        warn_line(problem.render())


def _render_row(row: Row) -> str:
    """`notes  [installed]  1.2.0  0123abcd  active  Takes notes.`"""
    facts = (
        _choose_name(row),
        f"[{row['source']}]",
        str(row.get("version") or ""),
        str(row.get("commit") or "")[:8],
        _render_state(row),
        one_line(str(row.get("description") or ""), _WIDTH),
    )
    return "  ".join(fact for fact in facts if fact)


def _choose_name(row: Row) -> str:
    """Return the ID if it is a path, such as `foo/baz` for the skill `baz` in the folder `foo`; else the name."""
    name, skill_id = str(row["name"]), str(row.get("id") or "")
    return skill_id if skill_id.endswith(f"/{name}") else name


def _render_state(row: Row) -> str:
    if not row["active"]:
        return "inactive"
    return f"active, {one_line(str(row['why']), _WIDTH)}" if row["why"] else "active"


def _write(rows: list[Row], *, with_all: bool = False) -> None:
    """Write usable skills to stdout and the others to stderr, or with `--all` everything to stdout."""
    usable = [row for row in rows if row["active"]]
    others = [row for row in rows if not row["active"]]
    for row in [*usable, *others] if with_all else usable:
        write_line(_render_row(row))
    if with_all:
        return
    if not usable:
        warn_line("No active skills")
    if others:
        warn_line("Inactive:")
    width = max((len(str(row["name"])) for row in others), default=0)
    for row in others:
        command = f"; {row['to_use']}" if row["to_use"] else ""
        warn_line(f"  {row['name']!s:<{width}}  {one_line(str(row['why']), _WIDTH)}{command}")
