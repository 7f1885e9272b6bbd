"""A run in a workspace with unreadable skills continues without them and reports it."""

import json
from pathlib import Path

import pytest
from agent_files import add_agent
from model_server import ModelServer, says
from run_workspace import Workspace, use_model

type Capture = pytest.CaptureFixture[str]
UNREADABLE = "---\nversion: 1\n---\n"


def test_a_run_lists_each_unreadable_skill(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    workspace.write(".agent/skills/team/bad/SKILL.md", UNREADABLE)
    lost = workspace.write(".agent/skills/lost/README.md", "").parent
    (lost / "SKILL.md").symlink_to("/nowhere/SKILL.md")
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet") == 0

    told = capsys.readouterr().err
    failed = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_load_failed"]
    assert [(each["skill_name"], each["code"]) for each in failed] == [
        ("bad", "skill_broken"),
        ("lost", "dangling_link"),
    ]
    assert "Skill 'team/bad' cannot be loaded: Field 'description' is missing" in failed[0]["reason"]
    assert "Skill 'team/bad' cannot be loaded" in told
    loaded = next(event for event in workspace.events() if event["event_type"] == "skill_catalog_loaded")
    record = json.loads((workspace.folder / "runs" / workspace.run_ids()[-1] / "run.json").read_text())
    assert loaded["payload"]["problems"] == record["skill_problems"] == 2


def test_an_agent_that_lists_an_unreadable_skill_gets_the_reason(workspace: Workspace, capsys: Capture) -> None:
    workspace.write(".agent/skills/team/bad/SKILL.md", UNREADABLE)
    workspace.write(".agent/agents/lead/AGENT.md", "---\nname: Lead\nskills: [team/bad]\n---\nLead.\n")

    assert workspace.agent("run", "Greet", "--agent", "lead") == 2

    assert "Skill 'team/bad' cannot be loaded: Field 'description' is missing" in capsys.readouterr().err


OWN_FAULTS = {
    "no front matter": (b"# Notes\n\nKeeps notes.\n", "The file has no front matter", 1),
    "YAML error": (b"---\nname: bad\ndescription: [a, b\n---\nText.\n", "YAML syntax error", None),
    "UTF-16": ("---\nname: bad\ndescription: Keeps notes.\n---\nText.\n".encode("utf-16"), "UTF-16, not UTF-8", 1),
    "no description": (b"---\nname: bad\n---\nKeeps notes.\n", "Field 'description' is missing", 1),
}


@pytest.mark.parametrize("fault", OWN_FAULTS)
@pytest.mark.parametrize("folder", [".agent/skills", "skills"])
def test_broken_own_skill_is_reported_and_not_loaded(
    workspace: Workspace, model: ModelServer, capsys: Capture, folder: str, fault: str
) -> None:
    data, message, line = OWN_FAULTS[fault]
    workspace.write(f"{folder}/bad/SKILL.md", "").write_bytes(data)
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet") == 0

    told = capsys.readouterr().err
    (failed,) = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_load_failed"]
    assert (failed["skill_name"], failed["code"]) == ("bad", "skill_broken")
    assert message in failed["reason"]
    assert line is None or failed["line"] == line
    assert "Skill 'bad' cannot be loaded" in told
    assert "could not be loaded: Skill" not in told
    loaded = next(event["payload"] for event in workspace.events() if event["event_type"] == "skill_catalog_loaded")
    assert (loaded["skills"], loaded["problems"]) == (1, 1)
    workspace.agent("skills", "list")
    assert "Keeps notes." not in capsys.readouterr().out


def test_skill_shared_with_other_tools_is_read_leniently(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".claude/skills/loose/SKILL.md", "# Notes\n\nKeeps notes.\n")
    model.follow(says("Done."))

    workspace.agent("run", "Greet")

    loaded = next(event["payload"] for event in workspace.events() if event["event_type"] == "skill_catalog_loaded")
    assert (loaded["skills"], loaded["problems"]) == (2, 0)


@pytest.mark.parametrize("agent", ["", "helper"])
def test_run_does_not_load_a_skill_without_a_listed_script(
    workspace: Workspace, model: ModelServer, capsys: Capture, agent: str
) -> None:
    text = "---\nname: lister\ndescription: Lists things.\nversion: 1.0.0\nscripts: [here, gone]\n---\nText.\n"
    workspace.write("skills/lister/SKILL.md", text)
    workspace.write("skills/lister/scripts/here.py", "print(1)\n")
    add_agent(workspace.folder, "helper")
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet", *(["--agent", agent] if agent else [])) == 0

    (found,) = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_load_failed"]
    assert (found["skill_name"], found["code"], found["line"]) == ("lister", "missing_script", 5)
    assert found["reason"] == "Skill 'lister' cannot be loaded: the listed script 'gone' is missing"
    assert found["reason"] in capsys.readouterr().err
    loaded = next(event["payload"] for event in workspace.events() if event["event_type"] == "skill_catalog_loaded")
    assert (loaded["skills"], loaded["problems"]) == (1, 1)


@pytest.mark.parametrize("name", ["../../etc/passwd", ".hidden", "n" * 65, "~", "__pycache__", "two words"])
def test_skill_with_an_invalid_name_uses_the_name_of_its_folder(
    workspace: Workspace, model: ModelServer, capsys: Capture, name: str
) -> None:
    workspace.write("skills/plain/SKILL.md", f"---\nname: {json.dumps(name)}\ndescription: Keeps notes.\n---\nText.\n")
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet") == 0
    workspace.agent("skills", "list", "--json")

    names = {skill["name"] for skill in json.loads(capsys.readouterr().out.partition("\n")[2] or "[]")}
    offered = json.dumps(model.received[0]["messages"])
    assert "plain" in names
    assert name not in names
    assert "plain" in offered


def test_hidden_and_unknown_names_are_not_load_failures(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.add_skill("kalshi-markets", "Ours.")
    workspace.configure(model=use_model(model), skills={"enabled": ["kalshi-markets", "gretter"]})
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet") == 0

    events = workspace.events()
    found = [event["payload"] for event in events if event["event_type"] == "skill_problem_found"]
    assert [(each["skill_name"], each["code"]) for each in found] == [
        ("gretter", "unknown_skill"),
        ("kalshi-markets", "shadowed_skill"),
    ]
    assert not [event for event in events if event["event_type"] == "skill_load_failed"]
    told = capsys.readouterr().err
    assert "No skill is called 'gretter'. Did you mean 'greeter'?" in told
    assert "()" not in told


@pytest.mark.parametrize("text", ["{", '{"version": 2, "skills": {"x": {}}}', '{"version": 99}'])
def test_damaged_registry_disables_installed_skills_but_not_the_run(
    workspace: Workspace, model: ModelServer, capsys: Capture, tmp_path: Path, text: str
) -> None:
    installed = tmp_path / "home/.agent/skills"
    (installed / "x").mkdir(parents=True)
    (installed / "x/SKILL.md").write_text("---\nname: x\ndescription: d\n---\n")
    (installed / "registry.json").write_text(text)
    workspace.configure(model=use_model(model), skills={"enabled": "all-untrusted"})
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet") == 0

    told = capsys.readouterr().err
    (found,) = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_problem_found"]
    assert found["code"] == "registry_unusable"
    assert found["path"] == str(installed / "registry.json")
    assert "Installed skills are not loaded: Registry" in told
    assert "- x: " not in json.dumps(model.received[0]["messages"])
    assert "greeter" in json.dumps(model.received[0]["messages"])
    assert workspace.agent("check") == 1
    assert "registry_unusable" in capsys.readouterr().err
    assert workspace.agent("skills", "list") == 0
    listed = capsys.readouterr()
    assert "x  [" not in listed.out
    assert "x  Installed skills are not loaded: Registry" in " ".join(listed.err.split(" "))
    assert "skills enable x" not in listed.err
    assert workspace.agent("skills", "update", "x") == 1
    assert (installed / "registry.json").read_text() == text


@pytest.mark.parametrize("scripts", ["5", "[gone]"])
def test_skill_without_a_listed_script_has_one_verdict(workspace: Workspace, capsys: Capture, scripts: str) -> None:
    workspace.write(
        "skills/lister/SKILL.md", f"---\nname: lister\ndescription: Lists.\nscripts: {scripts}\n---\nText.\n"
    )
    workspace.write("skills/lister/scripts/here.py", "print(1)\n")

    assert workspace.agent("check") == 1
    assert "Load failed: The listed script" in capsys.readouterr().out
    assert workspace.agent("validate") == 1
    assert "error: The listed script" in capsys.readouterr().out
    assert workspace.agent("skills", "validate", "skills") == 1
    judged = capsys.readouterr()
    assert "error: The listed script" in judged.out
    assert "1 of 2 skills can be loaded" in judged.err
    assert workspace.agent("skills", "list") == 0
    assert "lister  [folder]  active, cannot be loaded: The listed script" in capsys.readouterr().out


def test_skill_in_a_subfolder_is_listed_by_its_id(workspace: Workspace, capsys: Capture) -> None:
    workspace.write(".nanobot/skills/foo/baz/SKILL.md", "---\nname: baz\ndescription: Does it.\n---\nText.\n")

    assert workspace.agent("skills", "list") == 0

    assert "foo/baz  [workspace]  active  Does it." in capsys.readouterr().out.splitlines()
    assert workspace.agent("skills", "show", "foo/baz") == 0
    capsys.readouterr()
    workspace.agent("check")
    assert "  ✓ foo/baz (active) - " in capsys.readouterr().out


def test_unknown_skill_is_reported_even_without_a_provider_key(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    workspace.configure(model={"provider": "anthropic", "name": "m"})
    monkeypatch.setenv("AGENT_SKILLS", "kalshi-market")

    assert workspace.agent("run", "Greet") == 8

    told = capsys.readouterr().err
    assert "has no API key" in told
    assert "No skill is called 'kalshi-market'" in told
    assert "Did you mean 'kalshi-markets'?" in told


def test_skill_show_includes_the_references(workspace: Workspace, capsys: Capture) -> None:
    workspace.write("skills/greeter/references/tone.md", "# Tone\n\nBe kind.\n")

    assert workspace.agent("skills", "show", "greeter") == 0
    assert "References: references/tone.md (Tone, 17 bytes)" in capsys.readouterr().out
    assert workspace.agent("skills", "show", "greeter", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["references_index"] == [{"path": "references/tone.md", "title": "Tone", "bytes": 17}]


def test_outside_script_named_twice_in_a_line_is_reported_once(workspace: Workspace, capsys: Capture) -> None:
    workspace.add_skill("borrower", "Borrow.", body="Run `../x/a.sh`, then `../x/a.sh` again.\nThen `../x/a.sh`.")

    workspace.agent("skills", "validate", "skills/borrower")

    assert capsys.readouterr().out.count("names the script '../x/a.sh'") == 2


def test_list_of_agents_shows_the_allowed_models(workspace: Workspace, capsys: Capture) -> None:
    workspace.write(".agent/agents/w/AGENT.md", "---\nname: w\nallowed_models: [m1, 'm2*']\n---\nText.\n")

    assert workspace.agent("agents", "list") == 0

    assert "w  m1 or m2*, guarded" in capsys.readouterr().out


def test_one_bad_entry_of_an_index_does_not_hide_the_others(workspace: Workspace, capsys: Capture) -> None:
    good = {"name": "notes", "description": "Takes notes.", "source": "https://git.example/n.git", "commit": "0" * 40}
    rows = [{**good, "name": "../bad"}, good, {**good, "commit": "main"}]
    workspace.write("skills-index.json", json.dumps({"skills": rows}))
    workspace.configure(skills={"indexes": ["./skills-index.json"]})

    assert workspace.agent("skills", "search", "notes") == 0

    told = capsys.readouterr()
    assert told.out == "notes  Takes notes.\n"
    assert "Entry 0 is skipped: 'name'" in told.err
