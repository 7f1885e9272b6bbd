"""What `--ci` leaves behind: a summary in Markdown and test results, in the folder of the run."""

import os
from collections.abc import Sequence
from pathlib import Path

from metier.cli.shared.output import printable, warn_line
from metier.telemetry.redaction import Redactor
from metier.views.ci import list_cases, render_junit, render_summary
from metier.views.run_view import RunView

SUMMARY_FILE = "summary.md"
JUNIT_FILE = "junit.xml"
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names the file that GitHub shows on the page of a workflow run."""


def write_ci_files(view: RunView, folder: Path, *, result: str, advice: Sequence[str], redactor: Redactor) -> None:
    """Say where they are. A file that cannot be written is a warning: the run itself is on record."""
    shown = [printable(line, redactor=redactor) for line in advice]
    summary = render_summary(view, result=printable(result, redactor=redactor), advice=shown)
    junit = render_junit(list_cases(view), suite=view.task or "agent", run_id=view.run_id)
    try:
        (folder / SUMMARY_FILE).write_text(summary, encoding="utf-8")
        (folder / JUNIT_FILE).write_text(junit, encoding="utf-8")
        if named := os.environ.get(STEP_SUMMARY):
            with Path(named).open("a", encoding="utf-8") as stream:
                stream.write(f"{summary}\n")
    except OSError as error:
        warn_line(f"warning: The summary cannot be written: {error.strerror}")
        return
    warn_line(f"summary: {folder / SUMMARY_FILE}")
    warn_line(f"junit:   {folder / JUNIT_FILE}")
