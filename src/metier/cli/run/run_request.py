"""Build the request of `agent run` from its options, files and stdin, then run it here, on workers or on a server."""

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from metier.cli.run.driver import View, drive_run, run_in_background
from metier.cli.shared.open_host import open_run_host
from metier.cli.shared.output import warn_line
from metier.errors import UsageError
from metier.providers.model_names import parse_model_name
from metier.providers.options import OFFLINE
from metier.runtime.attachments import TaskWords, attach_files
from metier.runtime.build import list_tools
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest, join_trace, read_output_schema
from metier.runtime.workspace.agents import BUILT_IN, approves_changes, choose_built_in

MAX_TASK_BYTES = 256_000
MAX_CONTEXT_BYTES = 1_000_000
"""Maximum piped input. A larger file should be in the workspace, where the agent can read it."""


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


def read_task(argument: str | None, *, prompt: str | None, file: Path | None) -> str:
    """Return the task. Raises `UsageError` if there is none, more than one, or an empty one."""
    given = [source for source in (argument, prompt, file) if source is not None]
    if len(given) > 1:
        raise UsageError("More than one task given", hint="Use only one of the argument, -p and --task-file")
    if not given:
        raise UsageError("No task given", hint='For example, `agent run "list the open tasks"`')
    if file is not None:
        text = _read_file(file)
    elif given[0] == "-":
        text = _read_stdin(MAX_TASK_BYTES)
    else:
        # An argument that is not UTF-8 contains surrogates; `_decode` reports them.
        text = _decode(os.fsencode(str(given[0])), MAX_TASK_BYTES, "The task")
    if not text.strip():
        raise UsageError("The task is empty", hint='For example, `agent run "list the open tasks"`')
    return text.strip()


def read_context(*, is_task: bool) -> str:
    """Read piped input as extra context; empty if stdin is a terminal, closed, or has the task."""
    if is_task or sys.stdin is None or sys.stdin.closed or not _is_piped():
        return ""
    return _read_stdin(MAX_CONTEXT_BYTES).strip()


def _is_piped() -> bool:
    """Return True for a pipe or a file. A socket or a device might never end."""
    try:
        # Programs that embed the CLI replace stdin by an object without a descriptor, which raises both errors at once.
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # One byte too many shows that the file is too long, without reading all of it.
            data = file.read(MAX_TASK_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"The task file {str(path)!r} cannot be read: {error.strerror}", hint="Check the path"
        ) from error
    return _decode(data, MAX_TASK_BYTES, f"The task file {str(path)!r}")


def _read_stdin(limit: int) -> str:
    # Bytes: as text, Python would decode the input with the encoding of the locale.
    data = sys.stdin.buffer.read(limit + 1)
    return _decode(data, limit, "The piped input")


def _decode(data: bytes, limit: int, name: str) -> str:
    if len(data) > limit:
        raise UsageError(
            f"{name} is longer than {limit} bytes", hint="Save it in a workspace file and mention the file in the task"
        )
    try:
        # Editors on Windows write a byte order mark.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text, at byte {error.start}") from error


def open_request(
    request: RunRequest, config: Path | None, settings: Mapping[str, str], *, agent: str, model: str
) -> tuple[Host, RunRequest]:
    """Open the workspace, and choose the agent and the model there. Raises `UsageError`, `ConfigError`."""
    host = open_run_host(config, settings, is_new_run=not (model or agent))
    host, agent = choose_built_in(host, agent)
    if model and parse_model_name(model, provider=host.settings.model.provider).provider == OFFLINE:
        name = model.removeprefix(f"{OFFLINE}/")
        warn_line(f"warning: --model {name!r} is not used: the provider is {OFFLINE!r}")
    return host, replace(request, agent=agent, model=model)


def run_request(host: Host, request: RunRequest, view: View, *, detaches: bool, config: Path | None) -> int:
    """Drive the run until it ends or waits, or leave it to workers, and return the exit code."""
    if not (view.quiet or request.mode == "dry_run"):
        warn_of_profile(host, request.agent)
    if detaches:
        return run_in_background(lambda runs: runs.submit(request, {}), view, detaches=True, host=host, config=config)
    traced = join_trace(request, host)
    return drive_run(host, lambda runtime, options: runtime.start(traced, options), view)


def run_on_server(request: RunRequest, settings: Mapping[str, str], view: View, *, detaches: bool) -> int:
    """Start the run on the server, follow it and return the exit code."""
    return run_in_background(lambda runs: runs.submit(request, settings), view, detaches=detaches)


def with_files(
    host: Host, request: RunRequest, *, images: Sequence[Path], files: Sequence[Path], is_typed: bool
) -> RunRequest:
    """Attach the files of the options and those that the task mentions. Raises `UsageError`."""
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
