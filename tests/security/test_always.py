"""The answer "always in this run" covers the shown call, not everything that the tool can reach."""

from pathlib import Path

import pytest
from workspaces import Drill, call, put

from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.driver import DriveOptions
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.testing.scripted import Line, says
from metier.tools.web.web_fetch import WebFetch

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SCRIPT = "import json, sys\nprint(json.dumps({'summary': ' '.join(sys.argv)}))\n"
SKILL = "---\nname: {name}\ndescription: Does {name}.\n---\n# Do\n\nDo it.\n"


async def find_nothing(host: str, port: int) -> list[str]:
    raise OSError(host, port)


def script(skill: str, name: str, *args: str) -> Line:
    return call("script_run", skill_name=skill, script_name=name, args=list(args))


@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [
        (script("a", "one"), script("a", "one", "--more"), 1),
        (script("a", "one"), script("a", "two"), 2),
        (script("a", "one"), script("b", "one"), 2),
        (call("WebFetch", url="http://site.invalid/a"), call("WebFetch", url="http://SITE.invalid:80/b"), 1),
        (call("WebFetch", url="http://site.invalid/a"), call("WebFetch", url="http://evil.invalid/?k=v"), 2),
        (call("WebFetch", url="http://site.invalid/a"), call("WebFetch", url="http://site.invalid.evil.invalid/"), 2),
        (call("Bash", command="touch a"), call("Bash", command="touch a", cwd="sub"), 2),
        (call("Bash", command="touch a"), call("Bash", command="touch a; touch b"), 2),
        (call("Write", path="a", content="x"), call("Write", path="b", content="y"), 1),
    ],
)
async def test_always_covers_only_the_shown_scope(tmp_path: Path, first: Line, second: Line, asked: int) -> None:
    files = {f".agent/skills/{skill}/scripts/{name}.py": SCRIPT for skill in "ab" for name in ("one", "two")}
    put(tmp_path, {**files, **{f".agent/skills/{skill}/SKILL.md": SKILL.format(name=skill) for skill in "ab"}})
    put(tmp_path, {"sub/x": ""})
    drill = Drill(tmp_path, [first, second, says("Done.")], tools=(WebFetch(resolve=find_nothing),))
    questions: list[ApprovalQuestion] = []

    async def always(question: ApprovalQuestion) -> Reply:
        questions.append(question)
        return Reply(decision="approved", by="ada", remember=True)

    async with open_runtime(drill.host) as runtime:
        state = await runtime.start(RunRequest(task="work"), DriveOptions(ask=always))

    assert state.status == "completed"
    assert len(questions) == asked
