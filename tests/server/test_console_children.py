"""The page of a run with several concurrent agents nests each with its steps."""

import re

from agent_files import add_agent
from model_server import calls, running_model, says
from role_model import RoleModel
from run_workspace import QUICK, Workspace, use_model
from running_server import serving

TASKS = [
    {"agent": "reader", "task": "Read the notes"},
    {"agent": "counter", "task": "Count the files"},
    {"agent": "asker", "task": "Ask the user"},
]


def test_page_of_a_run_nests_concurrent_children_in_call_order(workspace: Workspace) -> None:
    for name in ("reader", "counter", "asker"):
        add_agent(workspace.folder, name, body=f"You are the {name}.")
    workspace.write("notes.txt", "Bring milk\n")
    lines = {
        "reader": [calls("Read", path="notes.txt"), says("The notes say: milk")],
        "counter": [calls("Glob", pattern="*.txt"), says("One")],
        "asker": [calls("ask_user", question="Which colour?"), says("It is blue")],
        "boss": [calls("delegate", tasks=TASKS), says("All three answered")],
    }
    with running_model(RoleModel(lines=lines)) as model:
        workspace.configure(model=use_model(model), runtime={**QUICK, "max_turns": 20})
        assert workspace.agent("run", "-q", "Look around") == 4
        with serving(workspace.folder) as server, server.sign_in() as browser:
            page = browser.get(f"/runs/{workspace.run_ids()[-1]}")

    assert page.status_code == 200, page.text
    text = re.sub(r"<[^>]+>", " ", page.text)
    places = [text.find(task["task"]) for task in TASKS]
    assert -1 not in places
    assert places == sorted(places)
    assert len(set(re.findall(r"child-[0-9a-f]{24}", page.text))) >= 3
    assert "notes.txt" in text
