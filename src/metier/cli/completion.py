"""`agent completion`: the script that teaches a shell to complete our commands and options."""

from typing import Annotated, Literal

import typer
import typer.completion

from metier.cli.root import COMPLETION_VARIABLE

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], typer.Argument(help="Shell.")],
    program: Annotated[str, typer.Option(help="Command name to complete.")] = "agent",
) -> None:
    """Print a shell completion script."""
    # Typer does not export this function.
    script: str = vars(typer.completion)["get_completion_script"](
        prog_name=program, complete_var=COMPLETION_VARIABLE, shell=shell
    )
    typer.echo(script)
