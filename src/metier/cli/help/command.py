"""`agent help [COMMAND …]`: the same text as `agent COMMAND --help`."""

from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def help_(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="The command; without one, all of them.")
    ] = None,
) -> None:
    """Show how a command is called, what it does, and examples."""
    root = ctx.find_root()
    root.command.main(args=[*(words or []), "--help"], prog_name=root.info_name, complete_var="", standalone_mode=False)
