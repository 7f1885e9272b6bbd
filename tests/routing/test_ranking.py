"""The order of ranked skills, and the reasons."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from metier.routing.ranking import build_index
from metier.routing.skill import RoutableSkill, SkillCandidate


def skill(name: str, description: str = "", *, tags: tuple[str, ...] = (), body: str = "") -> RoutableSkill:
    return RoutableSkill(id=name, name=name, description=description, tags=tags, body=body)


def rank(request: str, skills: Sequence[RoutableSkill], k: int) -> list[SkillCandidate]:
    return build_index(skills).rank(request, k)


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("pull the tables out of this invoice pdf", "pdf-tables"),
        ("someone should look at my pull request before it merges", "code-review"),
        ("the dashboard is slow, which database query is it", "sql-tuning"),
        ("roll back the last deployment on the cluster", "kubernetes-deploy"),
        ("TRANSLATING THESE DOCUMENTS", "translate"),
        ("improve my resume", "résumé"),
        ("a CAFÉ for the INTERVIEW", "résumé"),
        ("проверить договор", "документы"),
        ("空席はありますか", "予約"),
        ("レストラン", "予約"),
    ],
)
def test_the_matching_skill_ranks_first(twelve: tuple[RoutableSkill, ...], request_text: str, expected: str) -> None:
    assert rank(request_text, twelve, 3)[0].skill_name == expected


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("/weather pull the tables out of this invoice pdf", "weather"),
        ("$image for the release notes of the pull request", "image"),
        ("use code-review on the changelog and release notes from git history", "code-review"),
        ("run Code_Review over the git history", "code-review"),
        ("with the meeting minutes skill, review a pull request for bugs", "meeting-minutes"),
        ("apply `translate` to the invoice pdf tables", "translate"),
        ("Weather", "weather"),
        ("please /weather for the pull request", "weather"),
        ("pull the tables out of this pdf, then /translate them", "translate"),
        ("pull the tables, then run the code-review", "code-review"),
    ],
)
def test_a_skill_called_by_name_ranks_first_with_full_score(
    twelve: tuple[RoutableSkill, ...], request_text: str, expected: str
) -> None:
    first = rank(request_text, twelve, 3)[0]

    assert (first.skill_name, first.score, first.named) == (expected, 100.0, True)
    assert first.reason.startswith("the request names it")


@pytest.mark.parametrize(
    "request_text",
    [
        "read the image/weather folder",
        "cd /weather/data",
        "a good image of it",
        "GET endpoint /weather",
        "make GET /weather return 200",
        "add a /weather endpoint to the server",
        "the app has routes for / (home), /image and /weather",
        "mount the volume under /image",
        "echo $IMAGE in the script",
        "rename the column `image`",
        "our code-review process is slow",
    ],
)
def test_a_name_within_text_or_a_path_is_not_a_call(twelve: tuple[RoutableSkill, ...], request_text: str) -> None:
    assert not any(candidate.named for candidate in rank(request_text, twelve, 8))


def test_ties_are_broken_by_name_and_id_independent_of_catalog_order() -> None:
    same = [skill(name, "Paint the fence") for name in ("c", "a", "b")]
    twins = [skill("d", "Paint the fence") for _ in range(2)]
    catalog = [*same, *[type(twin)(id=f"d{n}", name="d", description=twin.description) for n, twin in enumerate(twins)]]
    orders = [random.Random(seed).sample(catalog, len(catalog)) for seed in range(5)]

    ranked = {tuple(candidate.skill_id for candidate in rank("paint a fence", order, 4)) for order in orders}

    assert ranked == {("a", "b", "c", "d0")}


def test_a_request_without_a_common_word_has_no_candidates(twelve: tuple[RoutableSkill, ...]) -> None:
    assert rank("zzz qqq xxyy", twelve, 8) == []
    assert rank("", twelve, 8) == []
    assert rank("😀 … !!", twelve, 8) == []


def test_every_skill_can_match_at_once() -> None:
    catalog = [skill(f"notes-{number:02}", "Take notes of a lecture") for number in range(40)]

    ranked = rank("take lecture notes", catalog, 8)

    assert [candidate.skill_name for candidate in ranked] == [f"notes-{number:02}" for number in range(8)]


def test_a_catalog_of_at_most_k_skills_is_returned_completely_with_scores(twelve: tuple[RoutableSkill, ...]) -> None:
    ranked = rank("forecast for the city", twelve, 12)

    assert len(ranked) == 12
    assert ranked[0].skill_name == "weather"
    assert ranked[0].score > 55
    assert ranked[-1].score == 0
    assert ranked[-1].reason == "no word in common with the request"


def test_a_used_index_ranks_like_a_fresh_one() -> None:
    chooser = random.Random(7)
    subjects = [f"{first}{last}" for first in "bdfgklm" for last in ("anor", "elit", "obus", "umen", "irak", "otal")]
    catalog = [
        skill(f"skill-{number:02}", f"Take the {' '.join(chooser.sample(subjects, 6))} of a report with care")
        for number in range(60)
    ]
    requests = [f"please take the report of {' and '.join(chooser.sample(subjects, size))}" for size in (3, 12, 30)]
    used = build_index(catalog)

    for text in [*requests, *reversed(requests)]:
        assert used.rank(text, 8) == build_index(catalog).rank(text, 8)


def test_an_empty_catalog_or_zero_results_yield_no_candidates(twelve: tuple[RoutableSkill, ...]) -> None:
    assert rank("anything", [], 8) == []
    assert rank("anything", twelve, 0) == []


@pytest.mark.parametrize(
    ("request_text", "expected", "meant"),
    [
        ("kuberntes rollbcak", "kubernetes-deploy", "kubernetes"),
        ("chanegelog plese", "release-notes", "changelog"),
        ("tempreature tomorow", "weather", "temperature"),
        ("договору", "документы", "договоров"),
    ],
)
def test_misspelled_words_are_corrected_and_the_reason_says_so(
    twelve: tuple[RoutableSkill, ...], request_text: str, *, expected: str, meant: str
) -> None:
    first = rank(request_text, twelve, 3)[0]

    assert first.skill_name == expected
    word = request_text.partition(" ")[0]
    assert (word, meant) in {(match.word, match.meant) for match in first.matched}
    assert f"{word} (read as {meant})" in first.reason


@pytest.mark.parametrize(
    ("request_text", "expected", "word"),
    [
        ("Push back on my plan", "pushback", "push back (read as pushback)"),
        ("send it as an e-mail", "email", "e mail (read as email)"),
    ],
)
def test_words_that_a_skill_writes_as_one_match_it(
    twelve: tuple[RoutableSkill, ...], request_text: str, *, expected: str, word: str
) -> None:
    catalog = (*twelve, skill("pushback", "Challenge an idea"), skill("email", "Reach a person"))

    first = rank(request_text, catalog, 3)[0]

    assert first.skill_name == expected
    assert f"{word} in name" in first.reason


def test_a_joined_word_of_the_request_counts_once(twelve: tuple[RoutableSkill, ...]) -> None:
    first = rank("parseJson", (*twelve, skill("parsejson", "Other")), 3)[0]

    assert [match.render() for match in first.matched] == ["parsejson in name"]


def test_reasons_name_the_words_and_their_fields(twelve: tuple[RoutableSkill, ...]) -> None:
    catalog = (*twelve, skill("ledger", "Close the books", tags=("accounting",), body="Reconcile every account."))

    first = rank("reconcile the ledger for accounting", catalog, 3)[0]

    fields = {match.word: match.fields for match in first.matched}
    assert fields == {"ledger": ("name",), "accounting": ("tags", "body"), "reconcile": ("body",)}


def test_a_description_counts_more_than_a_body(twelve: tuple[RoutableSkill, ...]) -> None:
    catalog = (
        *twelve,
        skill("a-body", "Something else", body="Knit a scarf."),
        skill("z-description", "Knit a scarf."),
    )

    assert [candidate.skill_name for candidate in rank("knit a scarf", catalog, 2)] == ["z-description", "a-body"]


def test_keyword_stuffing_does_not_beat_an_honest_description(twelve: tuple[RoutableSkill, ...]) -> None:
    stuffed = " ".join(["tables pdf invoice review deploy query translate weather image meeting notes release"] * 200)
    catalog = (*twelve, skill("a-stuffed", stuffed, tags=("pdf",) * 50, body=stuffed))
    requests = {
        "extract tables from a pdf": "pdf-tables",
        "review my pull request": "code-review",
        "weather forecast for the city": "weather",
        "write release notes from git history": "release-notes",
    }

    assert {text: rank(text, catalog, 3)[0].skill_name for text in requests} == requests


@pytest.mark.parametrize("word", ["skill ", "/weather ", "a-b-", "`x` ", "tpyo", "\u65e5"])
def test_a_megabyte_of_one_word_takes_bounded_time(twelve: tuple[RoutableSkill, ...], word: str) -> None:
    index = build_index(twelve)
    text = word * (1_000_000 // len(word))

    started = time.process_time()
    index.rank(text, 3)

    assert time.process_time() - started < 20


def test_start_and_end_of_a_large_request_are_read(twelve: tuple[RoutableSkill, ...]) -> None:
    index = build_index(twelve)
    pasted = " ".join(f"line{number} of a pasted log" for number in range(60_000))
    assert len(pasted) > 1_000_000
    index.rank("warm up tpyo", 3)

    started = time.process_time()
    ranked = index.rank(f"{pasted}\n/weather\n{pasted}\nnow translate these documents", 3)

    assert time.process_time() - started < 20
    assert ranked[0].skill_name == "translate"


@pytest.mark.parametrize("text", ["\x00\x00", "\ud800 lone", "a" * 100_000, "\u202e" * 50, "((((" * 1000, "-" * 9999])
def test_odd_text_is_ranked_without_an_error(twelve: tuple[RoutableSkill, ...], text: str) -> None:
    odd = (*twelve, skill("odd", text, tags=(text,), body=text))

    assert isinstance(rank(text, odd, 3), list)
    assert rank(f"translate {text} documents", odd, 3)


def test_two_processes_with_different_hash_seeds_give_the_same_ranking(twelve: tuple[RoutableSkill, ...]) -> None:
    program = (
        "import json, sys\n"
        "from metier.routing.ranking import build_index\n"
        "from metier.routing.skill import RoutableSkill\n"
        "skills = [RoutableSkill(id=n, name=n, description=d) for n, d in json.loads(sys.argv[1])]\n"
        "texts = ['tabels of teh pdf reviwe', 'write notes of the meeting', 'deploy images to the city database']\n"
        "print(json.dumps([[(c.skill_id, c.score, c.reason) for c in build_index(skills).rank(t, 8)] for t in texts]))"
    )
    catalog = json.dumps([(skill.name, skill.description) for skill in twelve])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, catalog],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }

    assert len(outputs) == 1
    assert all(json.loads(outputs.pop()))


def test_an_identifier_does_not_match_a_similar_name() -> None:
    catalog = [skill("gstack", "Founder mode reviews"), skill("swiftui", "Build layouts with stack views")]

    ranked = rank("align the VStack of my screen", catalog, 8)

    assert ranked[0].skill_name == "swiftui"
    assert next(each for each in ranked if each.skill_name == "gstack").matched == ()


def test_a_misspelled_word_is_corrected_only_with_the_same_first_letter() -> None:
    ranked = rank("pick a better vstack", [skill("gstack", "Founder mode")], 8)

    assert ranked[0].matched == ()


def test_excluded_uses_in_a_description_do_not_match() -> None:
    catalog = [
        skill("soup", "Cooks soup. Do not use for wedding cakes or bread."),
        skill("bakery", "Bakes bread and pies."),
        skill("party", "Plans a wedding."),
    ]

    ranked = rank("a wedding cake", catalog, 8)

    assert [each.skill_name for each in ranked if each.matched] == ["party"]


def test_the_verb_outweighs_an_equally_rare_object() -> None:
    catalog = [skill("a", "About a fence"), skill("b", "How to paint"), skill("c", "Find a train")]

    assert rank("Paint this fence", catalog, 1)[0].skill_name == "b"
    assert rank("A fence with paint", catalog, 1)[0].skill_name == "a"


def test_the_first_and_last_sentences_have_more_weight() -> None:
    skills = [skill("zithers", "All zithers"), skill("gazebos", "All gazebos"), skill("tents", "All tents")]
    index = build_index([*skills, *(skill(f"other-{number}", f"Other {number}") for number in range(9))])

    told = index.rank("My gazebos are dry. There are zithers here. I sleep under tents.", 3)

    assert [candidate.skill_name for candidate in told] == ["tents", "gazebos", "zithers"]
