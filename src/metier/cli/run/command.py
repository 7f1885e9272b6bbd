"""`agent run` and `agent -p`: run a task until it ends or waits for the user."""

from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from metier.cli.shared.command_options import (
    Ci,
    Config,
    DebugLlm,
    Detach,
    DryRun,
    Events,
    Files,
    Images,
    IncludePartial,
    OnLimitFlag,
    Output,
    OutputSchema,
    Profile,
    Quiet,
    RunCommand,
    Verbose,
    check_timeout,
    choose_output,
    get_server_url,
)
from metier.errors import UsageError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=RunCommand)
def run(
    task: Annotated[str | None, typer.Argument(help="Task; `-` reads it from stdin.")] = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Task, as an option.")] = None,
    task_file: Annotated[Path | None, typer.Option("--task-file", help="File with the task.")] = None,
    *,
    skills_dir: Annotated[Path | None, typer.Option("--skills-dir", help="Skills folder for this run.")] = None,
    agent: Annotated[str, typer.Option("--agent", help="Agent ID.")] = "",
    profile: Profile = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Model provider; `offline` needs no key.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model, or provider/model.")] = None,
    max_turns: Annotated[int | None, typer.Option("--max-turns", help="Maximum number of turns.")] = None,
    max_cost_usd: Annotated[float | None, typer.Option("--max-cost-usd", help="Maximum cost in US dollars.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Timeout in seconds.")] = None,
    on_limit: OnLimitFlag = None,
    image: Images = None,
    file: Files = None,
    dry_run: DryRun = False,
    debug_llm: DebugLlm = None,
    detach: Detach = False,
    output_schema: OutputSchema = None,
    output_format: Output = "text",
    include_partial: IncludePartial = False,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --output-format json.")] = False,
    quiet: Quiet = False,
    ci: Ci = False,
    verbose: Verbose = 0,
    events: Events = False,
    config: Config = None,
) -> int:
    """Run a task.

    Exit codes: 0 completed, 1 failed, 2 invalid usage or settings, 3 waiting for approval, 4 waiting for input, 5
    denied, 6 budget exceeded, 7 turn or time limit reached, 8 provider or API key error, 9 no sandbox, 10 in use
    by another process; 129, 130, 131, 143 stopped by a signal.
    """
    output = choose_output(output_format, as_json=as_json, include_partial=include_partial)
    _check_options(timeout, skills_dir, detach=detach)
    flags: dict[str, Any] = {
        "skills.dir": skills_dir, "runtime.profile": profile, "model.provider": provider,
        "runtime.max_turns": max_turns, "runtime.max_cost_usd": max_cost_usd, "runtime.on_limit": on_limit,
        "logging.debug_llm_bodies": None if debug_llm is None else str(debug_llm).lower(),
    }  # fmt: skip
    settings = {key: str(value) for key, value in flags.items() if value is not None}
    # Imported late: driving a run loads most of Metier, which `agent run --help` does not need.
    from metier.cli.run.driver import View
    from metier.cli.run.live import EVENTS
    from metier.cli.run.run_request import open_request, read_request, run_on_server, run_request, with_files
    from metier.providers.model_names import qualify_model_name

    shown = View(output=output, quiet=quiet, with_partials=include_partial, timeout_seconds=timeout, is_ci=ci)
    view = replace(shown, verbosity=EVENTS if events else verbose)
    request = read_request(task, prompt, file=task_file, is_dry=dry_run, output_schema=output_schema)
    named = qualify_model_name(model, provider=provider)
    if get_server_url():
        return run_on_server(replace(request, agent=agent, model=named), settings, view, detaches=detach)
    host, request = open_request(request, config, settings, agent=agent, model=named)
    # Only a typed task can attach files by naming their path: others may have written a task from a file or a pipe.
    is_typed = task_file is None and "-" not in (task, prompt)
    request = with_files(host, request, images=image or (), files=file or (), is_typed=is_typed)
    return run_request(host, request, view, detaches=detach, config=config)


def _check_options(timeout: float | None, skills_dir: Path | None, *, detach: bool) -> None:
    check_timeout(timeout, detach=detach)
    if skills_dir is not None and not skills_dir.is_dir():
        raise UsageError(f"Folder {str(skills_dir)!r} does not exist", hint="Pass a folder with skills")
