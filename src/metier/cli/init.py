"""`agent init`: write a small workspace to begin with. Its files are in `runtime.workspace.templates`."""

from pathlib import Path
from typing import Annotated

import typer

from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill.catalog import AsJson
from metier.cli.trust import trust_new_folder
from metier.runtime.workspace.templates import DEFAULT, Template, get_template, list_templates, write_template
from metier.skills.trust.workspace_trust import list_brought

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="The folder; it is made if it is not there.")] = Path(),
    *,
    template: Annotated[str, typer.Option("--template", help="Which workspace to begin with.")] = DEFAULT,
    show_list: Annotated[bool, typer.Option("--list", help="List the templates and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a workspace that is right and runs: agent, skills, task, rules, context. Replaces no file."""
    if show_list:
        _write_list(list_templates(), as_json=as_json)
        return
    chosen = get_template(template)
    was_empty = next(list_brought(path), None) is None
    written = write_template(chosen, path)
    if was_empty:
        # Who writes it here has said what it holds; a remote that is added later does not change that.
        trust_new_folder(path.absolute())
    if as_json:
        write_json({"template": chosen.name, "folder": str(path), "files": [str(file) for file in written]})
        return
    for file in written:
        write_line(str(file))
    for line in _say_what_next(chosen, path):
        warn_line(line)


def _write_list(templates: tuple[Template, ...], *, as_json: bool) -> None:
    if as_json:
        write_json([{"name": each.name, "about": each.about, "files": list(each.files)} for each in templates])
        return
    for each in templates:
        write_line(f"{each.name}  {each.about}")


def _say_what_next(template: Template, path: Path) -> list[str]:
    there = [] if path == Path() else [f"  cd {path}"]
    runs = [f"  agent task run {task} --provider offline    (no model, no key)" for task in template.tasks]
    return [
        f"Wrote {len(template.files)} files. What to do next:",
        *there,
        "  agent validate",
        "  agent policy test",
        *runs,
        '  agent run "…"    (with a model: set its key first; `agent doctor` says which)',
    ]
