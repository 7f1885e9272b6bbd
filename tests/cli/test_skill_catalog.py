"""The skill catalog in the first request, before a skill is active."""

import json
from typing import Any

import pytest
from model_server import ModelServer, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

SUBJECTS = ("bread", "bridges", "chess", "gardens", "knitting", "maps", "opera", "pottery", "trains")


def write_skill(workspace: Workspace, name: str, description: str, *, body: str = "Do it.") -> None:
    workspace.write(f".agent/skills/{name}/SKILL.md", f"---\nname: {name}\ndescription: {description}\n---\n{body}\n")


def read_catalog(model: ModelServer) -> str:
    return json.dumps(model.received[0]["messages"], ensure_ascii=False)


def test_a_small_catalog_includes_every_description(workspace: Workspace, model: ModelServer) -> None:
    for subject in SUBJECTS:
        write_skill(workspace, f"about-{subject}", f"Answers questions about {subject} of the region.")
    model.follow(says("Done"))

    assert workspace.agent("run", "-q", "Which knitting pattern and which trains are there?") == 0

    catalog = read_catalog(model)
    assert [subject for subject in SUBJECTS if f"questions about {subject} of" not in catalog] == []
    best = min(catalog.index("about knitting of"), catalog.index("about trains of"))
    assert best < catalog.index("about bread of")
    assert "Others:" not in catalog


def test_a_large_catalog_includes_the_best_descriptions_and_all_names(workspace: Workspace, model: ModelServer) -> None:
    filler = "with many more words that nobody asks for " * 20
    for number in range(20):
        write_skill(workspace, f"topic-{number}", f"Answers questions about subject{number} {filler}.")
    write_skill(workspace, "about-trains", "Finds trains and their timetables.")
    model.follow(says("Done"))

    assert workspace.agent("run", "-q", "When do the trains go?") == 0

    catalog = read_catalog(model)
    assert "Finds trains and their timetables." in catalog
    assert "Others: " in catalog
    assert "topic-19" in catalog
    assert catalog.count("Answers questions about subject") < 8


def test_a_skill_far_below_the_best_one_stays_a_candidate(workspace: Workspace, model: ModelServer) -> None:
    write_skill(workspace, "timetables", "Finds trains, buses and ferries and their timetables, platforms and prices.")
    write_skill(workspace, "engines", "Explains steam engines.", body="Trains were drawn by them.")
    model.follow(says("Done"))

    assert workspace.agent("run", "-q", "Find trains, buses and ferries with their prices and platforms") == 0

    candidates = find_ranking(workspace)["candidates"]
    assert [candidate["skill_name"] for candidate in candidates] == ["timetables", "engines"]
    assert candidates[1]["score"] < 55


def test_skills_route_and_a_run_rank_equally(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    write_skill(workspace, "engines", "Explains machines.", body="```\nsteam boilers\n```\nPistons and valves.")
    write_skill(workspace, "boilers", "Repairs heating.", body="Mends pipes.")
    for folder in (".claude", ".agents"):
        workspace.write(f"{folder}/skills/pipes/SKILL.md", f"---\nname: pipes\ndescription: From {folder}\n---\nBody\n")
    request = "steam boilers with pistons and pipes"
    model.follow(says("Done"))

    assert workspace.agent("run", "-q", request) == 0
    capsys.readouterr()
    assert workspace.agent("skills", "route", request, "--json") == 0
    routed = json.loads(capsys.readouterr().out)

    ranked = find_ranking(workspace)
    in_run = [(each["skill_name"], each["score"], each["reason"]) for each in ranked["candidates"]]
    in_command = [(each["skill_name"], round(each["score"], 1), each["reason"]) for each in routed["candidates"]]
    assert in_run == in_command
    assert ranked["considered"] == routed["considered"]


def find_ranking(workspace: Workspace) -> dict[str, Any]:
    return next(event for event in workspace.events() if event["event_type"] == "skill_prefilter_completed")["payload"]
