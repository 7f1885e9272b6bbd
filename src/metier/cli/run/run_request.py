"""The request of `agent run`: open the folder, build the request, and drive it or leave it to workers."""

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from metier.cli.run.driver import View, Work, drive_run
from metier.cli.run.task_text import read_context, read_task
from metier.cli.run.worker_handoff import detach_run
from metier.cli.shared.options import OutputFormat
from metier.cli.shared.output import warn_line
from metier.cli.shared.place import open_run_place
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.runtime.attachments import TaskWords, attach_files
from metier.runtime.build import list_tools
from metier.runtime.host import Host
from metier.runtime.queue.detached import submit
from metier.runtime.requests import RunRequest, read_output_schema, take_trace
from metier.runtime.runs import Runtime, Watch
from metier.runtime.workspace.agents import BUILT_IN, approves_changes, choose_built_in


class WantedRun(Struct, frozen=True, kw_only=True):
    """What the command line says."""

    task: str | None
    prompt: str | None
    task_file: Path | None
    agent: str
    model: str
    settings: Mapping[str, str]
    """Flags that stand for settings, by dotted key."""
    images: Sequence[Path]
    files: Sequence[Path]
    is_dry: bool
    output_schema: str | None
    config: Path | None

    @property
    def is_typed(self) -> bool:
        """What is piped in or read from a file may be the words of anyone: a path in it is no picture you dropped."""
        return self.task_file is None and "-" not in (self.task, self.prompt)


def start_run(wanted: WantedRun, view: View, *, detaches: bool) -> int:
    """Drive the run until it ends or waits, or leave it to workers; the exit code."""
    text = read_task(wanted.task, prompt=wanted.prompt, file=wanted.task_file)
    place = open_run_place(wanted.config, wanted.settings, is_new_run=not (wanted.model or wanted.agent))
    place, agent = choose_built_in(place, wanted.agent)
    if not (view.quiet or wanted.is_dry):
        warn_of_profile(place, agent)
    schema = None if wanted.output_schema is None else read_output_schema(wanted.output_schema)
    ask = RunRequest(
        task=text,
        mode="dry_run" if wanted.is_dry else "live",
        extra_context=read_context(is_task="-" in (wanted.task, wanted.prompt)),
        agent=agent,
        model=wanted.model,
        output_schema=schema,
    )
    request = with_files(place, ask, images=wanted.images, files=wanted.files, is_typed=wanted.is_typed)
    if detaches:
        return leave_to_workers(place, request, view.output, config=wanted.config)
    return drive_run(place, _start(request), view)


def with_files(
    place: Host, request: RunRequest, *, images: Sequence[Path], files: Sequence[Path], is_typed: bool
) -> RunRequest:
    """The request with the files that options name and the task mentions. Raises `UsageError`."""
    agent = request.agent or place.settings.runtime.agent or BUILT_IN
    words = TaskWords(text=request.task, agent=agent, is_typed=is_typed)
    attached = attach_files(place, words, images=images, files=files)
    for name in attached.missing:
        warn_line(f"warning: '@{name}' is not a workspace file and is left as text")
    return attached.add_to(request)


def _start(request: RunRequest) -> Work:
    def start(runtime: Runtime, watch: Watch) -> Awaitable[RunState]:
        return runtime.start(take_trace(request, runtime.place), watch)

    return start


def warn_of_profile(place: Host, agent: str) -> None:
    """Print a notice before a run that makes changes without asking."""
    # A broken definition is reported when the run starts.
    with suppress(OSError, UsageError):
        named = agent or place.settings.runtime.agent or BUILT_IN
        if place.settings.runtime.profile == "permissive" and approves_changes(place, named, list_tools((), place)):
            warn_line("Permissions: auto-approve. Use `--profile guarded` to review changes.")


def leave_to_workers(place: Host, request: RunRequest, output: OutputFormat, *, config: Path | None = None) -> int:
    traced = take_trace(request, place)
    return detach_run(
        place, lambda runtime: submit(runtime, traced, queue=place.settings.worker.queue), output, config=config
    )
