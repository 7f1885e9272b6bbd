"""`agent help [COMMAND …]`: the same text as `agent COMMAND --help`."""

from typing import Annotated

import typer

from metier.cli.root import ADVANCED, write_section
from metier.cli.shared.output import write_text

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def help_(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Command, or `advanced`. Default: all.")
    ] = None,
) -> None:
    """Show help for a command."""
    root = ctx.find_root()
    if words == [ADVANCED.lower()]:
        formatter = ctx.make_formatter()
        write_section(formatter, ADVANCED)
        write_text(formatter.getvalue())
        return
    root.command.main(args=[*(words or []), "--help"], prog_name=root.info_name, complete_var="", standalone_mode=False)
