"""The offline provider splits requests and chooses skills, in tables."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import metier
from metier.definitions.skills.scripts import discover_scripts
from metier.definitions.skills.skill import Entrypoint, SkillDefinition, load_skill
from metier.providers.offline.plan import OfflineSkill, PlaceholderValues, Planner, build_script_call, list_named
from metier.providers.offline.request import READ_CHARACTERS, list_keywords, read_request, split_parts
from metier.routing.ranking import build_index
from metier.routing.skill import RoutableSkill

INVENTORY, SEARCH, SUMMARY = "workspace-inventory", "keyword-search-extractor", "content-summarizer"
TASKS, REPORT, HELLO, MARKETS = "task-checklist-builder", "markdown-report-drafter", "hello-extended", "kalshi-markets"
VALUES = PlaceholderValues(workspace="ws", artifacts="out", previous="earlier.json")


def load_bundled() -> list[SkillDefinition]:
    folders = sorted(path for path in (Path(metier.__file__).parent / "bundled").iterdir() if path.is_dir())
    found = [load_skill(folder).skill for folder in folders]
    return [skill for skill in found if skill is not None]


@pytest.fixture(scope="module")
def planner() -> Planner:
    """The bundled skills, ranked by the real index."""
    skills = load_bundled()
    index = build_index(
        RoutableSkill(id=s.id, name=s.name, description=s.description, tags=s.tags, body=s.body) for s in skills
    )
    return Planner(
        skills=tuple(
            OfflineSkill(
                name=skill.name,
                description=skill.description,
                entrypoint=skill.entrypoint,
                scripts=tuple(script.name for script in discover_scripts(skill)),
            )
            for skill in skills
        ),
        rank=lambda text: [(found.skill_name, found.score) for found in index.rank(text, 8)],
        placeholders=VALUES,
    )


def names_of(planner: Planner, request: str) -> list[str | None]:
    return [step.skill.name if step.skill else None for step in planner.plan(request).steps]


PLANS: list[tuple[str, list[str | None]]] = [
    # one part
    ("inventory this workspace", [INVENTORY]),
    ("How large is this folder?", [INVENTORY]),
    ("Summarise the notes", [SUMMARY]),
    ("Give me the gist of these documents", [SUMMARY]),
    ("Where is the harbour mentioned?", [SEARCH]),
    ("Collect the action items with owners and due dates", [TASKS]),
    ("write a report", [REPORT]),
    ("Say hello to Ada", [HELLO]),
    ("Summarise the notes. Keep it short.", [SUMMARY]),
    ("search and extract passages about tides", [SEARCH]),
    # then
    ("inventory this workspace, then summarise the notes", [INVENTORY, SUMMARY]),
    ("Inventory this workspace and then write a report", [INVENTORY, REPORT]),
    ("First inventory this workspace, then write a report.", [INVENTORY, REPORT]),
    ("First, summarise the notes. Then write a report.", [SUMMARY, REPORT]),
    ("Summarise the notes; write a report", [SUMMARY, REPORT]),
    ("Inventory this workspace, after that make a checklist", [INVENTORY, TASKS]),
    ("Make a checklist of open tasks. Afterwards write a report", [TASKS, REPORT]),
    ("Inventory this workspace, summarise the notes and finally write a report", [INVENTORY, SUMMARY, REPORT]),
    ("To begin with, take stock of the folder. Next, list open tasks. Lastly, draft a report.",
     [INVENTORY, TASKS, REPORT]),
    ("an inventory of the workspace followed by a report", [INVENTORY, REPORT]),
    ("Inventory the workspace -> summarise the notes -> write a report", [INVENTORY, SUMMARY, REPORT]),
    ("Inventory the workspace. When you are done, write a report.", [INVENTORY, REPORT]),
    ("After taking stock of the folder, write a report", [INVENTORY, REPORT]),
    ("Write a report, but first take stock of the folder", [INVENTORY, REPORT]),
    ("First, inventory the workspace. Second, summarise the notes. Third, write a report.",
     [INVENTORY, SUMMARY, REPORT]),
    ("inventory this workspace, then find every TODO, then summarise the notes, then write a report",
     [INVENTORY, TASKS, SUMMARY, REPORT]),
    # lists
    ("1. Inventory this workspace\n2. Summarise the notes\n3. Write a report", [INVENTORY, SUMMARY, REPORT]),
    ("Please do the following:\n- inventory this workspace\n- write a report", [INVENTORY, REPORT]),
    ("1) inventory this workspace 2) list open tasks 3) write a report", [INVENTORY, TASKS, REPORT]),
    ("Step 1: inventory this workspace\nStep 2: write a report", [INVENTORY, REPORT]),
    ("(1) summarise the notes (2) write a report", [SUMMARY, REPORT]),
    ("Do this:\n\n* summarise the notes\n\n* write a report\n", [SUMMARY, REPORT]),
    # joints that only may split
    ("Inventory this workspace and write a report", [INVENTORY, REPORT]),
    ("Inventory this workspace. Summarise the notes. Write a report.", [INVENTORY, SUMMARY, REPORT]),
    ("inventory this workspace, summarise the notes, write a report", [INVENTORY, SUMMARY, REPORT]),
    ("Summarise the notes and give me an overview", [SUMMARY]),
    # not a joint
    ('Where is "first eat, then sleep" mentioned?', [SEARCH]),
    ("Where is `a; b` mentioned?", [SEARCH]),
    ("Summarise the notes (first the old ones, then the new ones)", [SUMMARY]),
    ("Summarise the notes that were written since then", [SUMMARY]),
    ("Summarise what the notes say about the next steps", [SUMMARY]),
    # other languages
    ("Zuerst inventory des workspace, dann TODO suchen und schreibe danach einen report", [INVENTORY, TASKS, REPORT]),
    ("D'abord inventory du workspace, puis summary des notes, enfin report", [INVENTORY, SUMMARY, REPORT]),
    ("Primero inventory del workspace, luego summary de notes y finalmente un report", [INVENTORY, SUMMARY, REPORT]),
    # by name
    ("/content-summarizer the harbour log", [SUMMARY]),
    ("$workspace-inventory", [INVENTORY]),
    ("Use `markdown-report-drafter` for the harbour", [REPORT]),
    ("use the keyword_search_extractor skill on notes", [SEARCH]),
    ("Run Workspace-Inventory on what is the weather", [INVENTORY]),
    ("/workspace-inventory and /content-summarizer", [INVENTORY, SUMMARY]),
    ("say hello with /content-summarizer", [SUMMARY]),
    # nothing to go by
    ("What is the weather in Paris?", [None]),
    ("Translate the poem into French", [None]),
    ("inventory this workspace, then bake a cake, then write a report", [INVENTORY, None, REPORT]),
    ("deploy the app to production", [None]),
    ("", []),
    ("   \n\t ", []),
    ("and then; then, and", []),
    ("天気はどうですか", [None]),
    ("🚀🚀🚀", []),
]  # fmt: skip


@pytest.mark.parametrize(("request_text", "skills"), PLANS)
def test_a_request_produces_the_expected_plan(planner: Planner, request_text: str, skills: list[str | None]) -> None:
    assert names_of(planner, request_text) == skills
    assert planner.plan(request_text) == planner.plan(request_text)


PARTS: list[tuple[str, list[str]]] = [
    ("if there are tasks then write a report", ["if there are tasks then write a report"]),
    ("wait until then and report", ["wait until then and report"]),
    ("alpha; beta;gamma", ["alpha", "beta;gamma"]),
    ("say “one; two” then stop", ["say “one; two”", "stop"]),
    ("it's fine, then don't stop", ["it's fine", "don't stop"]),
    ('an "unclosed quote, then beta', ['an "unclosed quote', "beta"]),
    ("```\nalpha; beta\n1. gamma\n2. delta\n``` then stop", ["```\nalpha; beta\n1. gamma\n2. delta\n```", "stop"]),
    ("first aid in the notes", ["first aid in the notes"]),
    ("1. alpha\n   more alpha\n2. beta", ["alpha\nmore alpha", "beta"]),
    ("Zähle Wörter,   danach\tstopp", ["Zähle Wörter", "stopp"]),
    ("alpha\x00\x07beta then gam\ud800ma", ["alpha beta", "gam?ma"]),
    ("cuenta después de comer", ["cuenta después de comer"]),
    ("alpha\r\n\r\nbeta", ["alpha", "beta"]),
]


@pytest.mark.parametrize(("request_text", "parts"), PARTS)
def test_a_request_is_split_at_connectors_outside_quotes(request_text: str, parts: list[str]) -> None:
    assert split_parts(read_request(request_text)) == parts


KEYWORDS: list[tuple[str, list[str]]] = [
    ("find every TODO", ["TODO"]),
    ('search for "harbour master" in the notes', ["harbour master"]),
    ("Where is the licence mentioned in config.yaml?", ["licence", "config.yaml"]),
    ("find max_turns, and «la mer, bleue»", ["la mer bleue"]),
    ("suche alle Brücken", ["Brücken"]),
    ("find TODO and todo", ["TODO"]),
    ("find it", []),
    ("/finder look for Ärger", ["Ärger"]),
]


@pytest.mark.parametrize(("request_text", "keywords"), KEYWORDS)
def test_keywords_are_quoted_phrases_or_significant_words(request_text: str, keywords: list[str]) -> None:
    assert list_keywords(request_text, without=frozenset({"finder"})) == keywords


def test_placeholders_are_filled_once_and_values_cannot_be_options() -> None:
    entrypoint = Entrypoint(
        "go.py", ("{workspace}/x", "--task={task}", "{keywords}", "{previous}", "{artifacts}", "{z}")
    )
    skill = OfflineSkill(name="go", entrypoint=entrypoint, scripts=("go.py",))

    call = build_script_call(skill, "--force find {workspace}\nnow", VALUES, has_previous=False)

    assert call.script == "go"
    assert call.args == ("ws/x", "--task=force find {workspace} now", "force", "", "out", "{z}")
    assert build_script_call(skill, "x", VALUES, has_previous=True).args[3] == "earlier.json"


def test_arguments_of_a_long_request_stay_within_the_script_limit() -> None:
    skill = OfflineSkill(name="go", entrypoint=Entrypoint("go", ("{task}", "{keywords}")), scripts=("go.py",))
    text = " ".join(f"Ünïcödé-{'漢' * 80}{number}" for number in range(500))

    call = build_script_call(skill, text, VALUES, has_previous=False)

    assert sum(len(arg.encode()) for arg in call.args) <= 2_100
    assert all(call.args)


def test_the_reason_contains_the_score_and_the_words(planner: Planner) -> None:
    step = planner.plan("inventory this workspace").steps[0]
    assert step.reason == "score 100 of 100; matched: inventory, workspace"
    assert planner.plan("/hello-extended").steps[0].reason == "named in the request"


def test_a_skill_without_a_usable_entrypoint_is_a_problem(planner: Planner) -> None:
    [step] = planner.plan("odds of rain on kalshi").steps
    assert step.problem == "skill 'kalshi-markets' has no entrypoint and no impl.py, so only a model can use it"
    skill = OfflineSkill(name="lost", entrypoint=Entrypoint("gone"), scripts=("other.py",))
    [step] = Planner(skills=(skill,), rank=lambda _: [], placeholders=VALUES).plan("/lost").steps
    assert step.problem == "the entrypoint of skill 'lost' names script 'gone', which doesn't exist"


def test_a_name_inside_a_path_or_another_word_is_not_a_call() -> None:
    skills = [OfflineSkill(name="notes"), OfflineSkill(name="code-review")]
    for text in (
        "read src/notes please",
        "read /notes/a.txt",
        "my notes",
        "pre-code-review",
        "code-review.md",
        "~/notes",
    ):
        assert list_named(text, skills) == []
    for text in ("/notes", "use skill notes", "the notes skill", "`notes`", "notes", "$NOTES now"):
        assert [skill.name for skill in list_named(text, skills)] == ["notes"]


HUGE = [
    "then " * 200_000,
    " " * 1_000_000,
    "“" * 1_000_000,
    "(" * 1_000_000,
    "\n" * 1_000_000,
    "1) " * 330_000,
    "```" * 330_000,
    "' " * 500_000,
    "/a-" * 330_000,
    "and find TODO, " * 70_000,
    "inventory this workspace; " * 40_000,
    "漢字" * 500_000,
    "if " * 200_000 + "then " * 100_000,
]


@pytest.mark.parametrize("text", HUGE, ids=lambda text: repr(text[:12]))
def test_a_request_of_a_megabyte_takes_bounded_time_and_reports_truncation(planner: Planner, text: str) -> None:
    started = time.process_time()
    plan = planner.plan(text)
    assert time.process_time() - started < 20
    assert plan.is_truncated == (len(text) > READ_CHARACTERS)
    assert len(plan.steps) <= 50


def test_ranking_receives_only_bounded_text() -> None:
    asked: list[int] = []

    def rank(text: str) -> Sequence[tuple[str, float]]:
        asked.append(len(text))
        return []

    Planner(skills=(OfflineSkill(name="x"),), rank=rank, placeholders=VALUES).plan("word " * 100_000)
    assert asked
    assert max(asked) <= 2_000
