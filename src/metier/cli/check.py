"""`agent check`, also `agent --check`: everything that can be wrong here, by the checks of the other commands."""

import typer

from metier.cli.policy import HeldRules, try_rules
from metier.cli.shared.context import current_directory, current_file
from metier.cli.shared.options import AsJson, SkillsDir
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.shared.place import open_place
from metier.cli.skill.catalog import open_places
from metier.cli.skill.check import check_skills, find_hint, has_failed, skill_as_json, write_skills
from metier.cli.validate import located_as_json, render_counts, validate_folder
from metier.definitions.problems import Problem, has_errors
from metier.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def check(skills_dir: SkillsDir = None, as_json: AsJson = False) -> int:
    """Check everything here: settings, skills, agents, tasks, rules and their examples. Calls no model.

    The exit code is 1 when an active skill cannot be loaded or a definition or rule cannot be used, and 2 when the
    settings cannot.
    """
    places = open_places(skills_dir)
    skills = check_skills(places)
    found, _ = validate_folder(current_directory())
    held, broken = _try_rules()
    problems = [*found.problems, *(problem for problem in broken if problem not in found.problems)]
    failed = has_failed(skills) or has_errors(problems)
    if as_json:
        write_json(
            {
                "skills": [skill_as_json(status) for status in skills.skills],
                "settings": str(current_file(None) or "") or None,
                "problems": [located_as_json(problem) for problem in (*skills.problems, *problems)],
                "rules": held._asdict() if held else None,
                "ok": not failed,
            }
        )
        return 1 if failed else 0
    write_skills(skills)
    write_line(f"Settings: {current_file(None) or 'the defaults'}")
    write_line(f"Project: {render_counts(found)}")
    write_line(f"Rules: {held.rules} rules and {held.examples} examples hold" if held else "Rules: some cannot be used")
    for problem in (*skills.problems, *problems):
        warn_line(problem.render())
    if hint := find_hint(skills, places):
        warn_line(hint)
    return 1 if failed else 0


def _try_rules() -> tuple[HeldRules | None, list[Problem]]:
    try:
        return try_rules(open_place(None)), []
    except ConfigError as error:
        located = [problem for problem in error.problems if isinstance(problem, Problem)]
        return None, located or [Problem(severity="error", code="bad_rules", message=error.message, hint=error.hint)]
