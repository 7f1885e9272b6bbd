"""`agent init`: create a starter workspace from a template."""

import os
from pathlib import Path
from typing import Annotated, Literal, cast

import anyio
import typer
from msgspec.structs import replace

from metier.cli.shared.command_options import AsJson
from metier.cli.shared.context import home_folder, is_at_terminal
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.trust import trust_new_folder
from metier.definitions.names import PLUGIN
from metier.errors import UsageError
from metier.providers.options import OFFLINE, ProviderName
from metier.providers.registry import BUILT_IN, check_base_url, choose_provider
from metier.runtime.provider_setup import (
    DEFAULT_MODELS,
    Candidate,
    ModelChoice,
    find_ready,
    list_candidates,
    propose_model,
    render_settings,
)
from metier.runtime.workspace.templates import (
    DEFAULT,
    Template,
    get_template,
    list_templates,
    write_project_file,
    write_template,
)
from metier.settings.discovery import FILE_NAME
from metier.settings.resolution import load_settings
from metier.skills.workspace_trust import list_agent_files
from metier.telemetry.amounts import format_count

AGENT = "assistant"
"""The agent of every template."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Workspace folder; created if missing.")] = Path(),
    *,
    template: Annotated[str, typer.Option("--template", help="Workspace template.")] = DEFAULT,
    provider: Annotated[
        Literal["anthropic", "gemini", "openai", "offline"] | None,
        typer.Option("--provider", help="Model provider. Default: the one whose API key is set."),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Model name.")] = "",
    base_url: Annotated[str, typer.Option("--base-url", help="Base URL, such as `http://localhost:8080/v1`.")] = "",
    profile: Annotated[
        Literal["permissive", "guarded", "strict"] | None,
        typer.Option("--profile", help="Permission profile. Default: the agent's own (guarded)."),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the templates and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a starter workspace. Existing files are kept."""
    if show_list:
        _write_list(list_templates(), as_json=as_json)
        return
    chosen = get_template(template)
    check_base_url(base_url)
    # Before anything is written, because the template's files would be found too.
    was_empty = next(list_agent_files(path), None) is None
    choice = replace(_choose_model(provider, model, base_url, path), profile=profile, agent=AGENT)
    written = [*write_template(chosen, path, replaced={FILE_NAME: render_settings(choice)}), *_write_instructions(path)]
    if was_empty:
        # The user created these files. They stay trusted if the folder gets a git remote later.
        trust_new_folder(path.absolute())
    if as_json:
        answered = {"provider": choice.provider, "model": choice.model or None}
        files = [str(file) for file in written]
        write_json({"template": chosen.name, "folder": str(path), "files": files, **answered})
        return
    for file in written:
        write_line(str(file))
    for line in _render_next_steps(chosen, path, choice, files=len(written)):
        warn_line(line)


def _write_instructions(path: Path) -> list[Path]:
    """Write an `AGENTS.md` to fill in, unless the folder has instructions already. Raises `UsageError`."""
    try:
        file = write_project_file(path)
    except OSError as error:
        raise UsageError(f"'{path / 'AGENTS.md'}' cannot be written: {error.strerror}") from error
    return [] if file is None else [file]


def _choose_model(provider: ProviderName | None, model: str, base_url: str, path: Path) -> ModelChoice:
    """Use the flags, else the user's own settings, else an API key that is set, else a local server after a yes."""
    if provider or base_url or os.path.lexists(path / FILE_NAME):
        named = provider or ("openai" if base_url else "anthropic")
        usual = "" if base_url else DEFAULT_MODELS.get(named, "")
        return ModelChoice(provider=named, model=model or usual, base_url=base_url)
    own = _find_own_choice(path)
    if own is not None:
        return replace(own, model=model or own.model)
    candidates = anyio.run(list_candidates, os.environ)
    found = find_ready(candidates, "key") or _ask_about_server(find_ready(candidates, "server"), model)
    if found is None:
        return ModelChoice(provider="anthropic", model=model or DEFAULT_MODELS["anthropic"])
    warn_line(f"Model provider: {found.label} ({found.detail})")
    # An address from the environment overrides the file and may change, so it is not written to it.
    address = found.base_url if found.readiness == "server" else ""
    return ModelChoice(provider=found.provider, model=model or propose_model(found, found.models), base_url=address)


def _ask_about_server(server: Candidate | None, model: str) -> Candidate | None:
    """Any program can listen at a local port, so a server that answers there is used only after a yes."""
    if server is None:
        return None
    named = model or propose_model(server, server.models)
    if not is_at_terminal():
        warn_line(f"{server.label} answers at {server.base_url}. To use it: `agent init --base-url {server.base_url}`")
        return None
    return server if typer.confirm(f"Use {named} from {server.label} at {server.base_url}?", err=True) else None


def _find_own_choice(path: Path) -> ModelChoice | None:
    """Find the model of the user's own settings: the new settings file overrides them, so it has to repeat it."""
    loaded = load_settings(flags={}, environ=os.environ, cwd=path.absolute(), home=home_folder(), config=None)
    origin = loaded.origins["model.provider"]
    options = loaded.settings.model
    if origin.kind != "file" or options.provider.startswith(PLUGIN):
        return None
    reached = choose_provider(options)
    # Plugins are excluded above, so it is one of the four built-in providers.
    return ModelChoice(provider=cast("ProviderName", options.provider), model=options.name, base_url=reached.base_url)


def _write_list(templates: tuple[Template, ...], *, as_json: bool) -> None:
    if as_json:
        write_json([{"name": each.name, "about": each.about, "files": list(each.files)} for each in templates])
        return
    for each in templates:
        write_line(f"{each.name}  {each.about}")


def _render_next_steps(template: Template, path: Path, choice: ModelChoice, *, files: int) -> list[str]:
    there = [] if path == Path() else [f"  cd {path}"]
    runs = [f"  agent task run {task} --provider offline    (no model, no key)" for task in template.tasks]
    return [
        f"Wrote {format_count(files, 'file')}. Next steps:",
        *there,
        "  agent check",
        *runs,
        f'  agent run "…"    ({_describe_answerer(choice)})',
    ]


def _describe_answerer(choice: ModelChoice) -> str:
    if choice.provider == OFFLINE:
        return "without a model; to choose one, run `agent config set model.provider anthropic`"
    keys = BUILT_IN[choice.provider].keys
    is_ready = bool(choice.base_url) or any(os.environ.get(key, "").strip() for key in keys)
    needed = "" if is_ready else f"; set {keys[0]} first"
    return f"uses {choice.model}{needed}"
