"""Questions of a new maintainer, the file that answers each, and a definition that it must contain."""

from typing import NamedTuple


class Answer(NamedTuple):
    question: str
    file: str
    definition: str


ANSWERS = (
    Answer("Where does a run choose what to do next?", "engine/decide.py", "def decide("),
    Answer("Where does a journal become the state of a run?", "engine/state/fold.py", "def fold("),
    Answer("Which entries can a journal hold?", "engine/entries/entry.py", "type Entry ="),
    Answer("Which events of a step does the log hold?", "events/step.py", "class StepStarted("),
    Answer("Where is the envelope of an event?", "events/record.py", "class EventRecord("),
    Answer("Where is the one loop that drives every run?", "engine/loop.py", "async def drive("),
    Answer("Where is a request sent to the model and its reply recorded?", "engine/model/model_call.py", "async def "),
    Answer("Where is outside text redacted before it is recorded?", "engine/redaction.py", "def redact["),
    Answer("Where does a run stop at its budget?", "engine/decide.py", "def _stop_at_budget("),
    Answer(
        "Where is an approval bound to its arguments?", "engine/execution/approval_requests.py", "def bind_approval("
    ),
    Answer("What happens to a step that a crash left in doubt?", "engine/execution/recovery.py", "async def "),
    Answer("Where is a recorded run driven again without effects?", "engine/replay/replay.py", "class "),
    Answer("How do the rules judge a call?", "approval/judge.py", "def "),
    Answer("Which shell commands count as harmless?", "tools/shell/harmless.py", "def "),
    Answer("Where is the `Edit` tool?", "tools/files/edit.py", "class "),
    Answer("Where does a skill's script get its own Python environment?", "tools/scripts/runner.py", "def "),
    Answer("Where is a program confined with bubblewrap?", "tools/process/sandbox/bubblewrap.py", "def "),
    Answer("Where is the format of Anthropic's API mapped?", "providers/anthropic.py", "def build_body("),
    Answer("Where are the statements for leases?", "store/queries/leases.py", "UPDATE leases"),
    Answer("Where are the tables of the SQLite store?", "store/sqlite/schema.py", "CREATE TABLE"),
    Answer("Where is a skill installed from git?", "skills/install/operations.py", "def "),
    Answer("Where is it decided whether the code of a skill may run?", "skills/skill_trust.py", "def is_trusted("),
    Answer("Where is a run exported to a file and imported?", "runtime/history/transfer.py", "def "),
    Answer("Where is the command `agent runs export`?", "cli/runs/export.py", "def "),
    Answer("Where do events become what a person sees of a run?", "views/fold.py", "def "),
    Answer("Where is the HTTP server put together?", "server/app.py", "def create_app("),
    Answer("Where are the pages of approvals in the console?", "server/console/inbox_pages.py", "def "),
    Answer("Where does an editor's session become runs?", "protocols/acp/session.py", "class "),
    Answer("Where is a check of an eval graded?", "evals/grading.py", "def grade("),
    Answer("Where does a command read runs without what drives them?", "runtime/run_store.py", "async def open_runs("),
    Answer("Which options do several commands share?", "cli/shared/command_options.py", "Config = "),
)
