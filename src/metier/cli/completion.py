"""`agent completion`: the script that teaches a shell to complete our commands and options."""

from typing import Annotated, Literal

import typer
import typer.completion

from metier.cli.root import COMPLETION_VARIABLE

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], typer.Argument(help="The shell to complete in.")],
    program: Annotated[str, typer.Option(help="The name the command is called by.")] = "agent",
) -> None:
    """Print the completion script of a shell; write it where that shell looks for completions."""
    script: str = vars(typer.completion)["get_completion_script"](
        prog_name=program, complete_var=COMPLETION_VARIABLE, shell=shell
    )
    typer.echo(script)
