"""Run a request of `agent run` or `agent task run`: attach its files, then drive it or leave it to workers."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from metier.cli.run.driver import View, drive_run
from metier.cli.run.task_text import read_context, read_task
from metier.cli.run.worker_handoff import run_in_background
from metier.cli.shared.open_host import open_run_host
from metier.cli.shared.output import warn_line
from metier.errors import UsageError
from metier.runtime.attachments import TaskWords, attach_files
from metier.runtime.build import list_tools
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest, read_output_schema, take_trace
from metier.runtime.workspace.agents import BUILT_IN, approves_changes, choose_built_in


def read_request(
    task: str | None, prompt: str | None, *, file: Path | None, is_dry: bool, output_schema: str | None
) -> RunRequest:
    """Read the task, the context that was piped in, and the schema of the result. Raises `UsageError`."""
    return RunRequest(
        task=read_task(task, prompt=prompt, file=file),
        mode="dry_run" if is_dry else "live",
        extra_context=read_context(is_task="-" in (task, prompt)),
        output_schema=None if output_schema is None else read_output_schema(output_schema),
    )


def open_request(
    request: RunRequest, config: Path | None, settings: Mapping[str, str], *, agent: str, model: str, quiet: bool
) -> tuple[Host, RunRequest]:
    """Open the workspace, and choose the agent and the model there. Raises `UsageError`, `ConfigError`."""
    host = open_run_host(config, settings, is_new_run=not (model or agent))
    host, agent = choose_built_in(host, agent)
    if not (quiet or request.mode == "dry_run"):
        warn_of_profile(host, agent)
    return host, replace(request, agent=agent, model=model)


def run_request(host: Host, request: RunRequest, view: View, *, detaches: bool, config: Path | None) -> int:
    """Drive the run until it ends or waits, or leave it to workers, and return the exit code."""
    if detaches:
        return run_in_background(lambda runs: runs.submit(request, {}), view, detaches=True, host=host, config=config)
    traced = take_trace(request, host)
    return drive_run(host, lambda runtime, options: runtime.start(traced, options), view)


def run_on_server(request: RunRequest, settings: Mapping[str, str], view: View, *, detaches: bool) -> int:
    """Start the run on the server, follow it and return the exit code."""
    return run_in_background(lambda runs: runs.submit(request, settings), view, detaches=detaches)


def with_files(
    host: Host, request: RunRequest, *, images: Sequence[Path], files: Sequence[Path], is_typed: bool
) -> RunRequest:
    """The request with the files that options name and the task mentions. Raises `UsageError`."""
    agent = request.agent or host.settings.runtime.agent or BUILT_IN
    words = TaskWords(text=request.task, agent=agent, is_typed=is_typed)
    attached = attach_files(host, words, images=images, files=files)
    for name in attached.missing:
        warn_line(f"warning: '@{name}' is not a workspace file and is left as text")
    return attached.add_to(request)


def warn_of_profile(host: Host, agent: str) -> None:
    """Print a notice before a run that makes changes without asking."""
    # A broken definition is reported when the run starts.
    with suppress(OSError, UsageError):
        named = agent or host.settings.runtime.agent or BUILT_IN
        if host.settings.runtime.profile == "permissive" and approves_changes(host, named, list_tools((), host)):
            warn_line("Permissions: auto-approve. Use `--profile guarded` to review changes.")
