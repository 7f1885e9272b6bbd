"""`routing.embeddings` end to end: combined with words, cached, recorded, and never blocking."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from agent_files import add_agent
from cloned_folder import fill
from embeddings_server import Behaviour, EmbeddingsServer, running_embeddings
from model_server import ModelServer, says
from run_workspace import QUICK, Workspace, use_model

MANY = 12
REQUEST = "tune my automobile please"


@pytest.fixture
def embeddings() -> Iterator[EmbeddingsServer]:
    with running_embeddings() as running:
        yield running


@pytest.fixture
def garage(
    workspace: Workspace, model: ModelServer, embeddings: EmbeddingsServer, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """Skills, one of which has the meaning of the request in other words."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(workspace.folder.parent / "cache"))
    configure(workspace, model, embeddings)
    workspace.add_skill("workshop", "Repair the engine of a vehicle.")
    workspace.add_skill("piano", "Tune a piano.")
    for number in range(MANY):
        workspace.add_skill(f"paper-{number}", f"File an invoice in drawer {number}.")
    model.follow(says("Done."))
    return workspace


def configure(workspace: Workspace, model: ModelServer, embeddings: EmbeddingsServer, **more: object) -> None:
    workspace.configure(
        model=use_model(model),
        runtime=QUICK,
        routing={"embeddings": {"base_url": embeddings.url, "model": "e", **more}},
    )


def route(workspace: Workspace, capsys: pytest.CaptureFixture[str], request: str = REQUEST) -> dict[str, Any]:
    assert workspace.agent("skills", "route", request, "--json") == 0
    return json.loads(capsys.readouterr().out)


def names(answer: dict[str, Any]) -> list[str]:
    return [candidate["skill_name"] for candidate in answer["candidates"]]


def test_embeddings_find_a_skill_without_shared_words_and_words_still_count(
    garage: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = route(garage, capsys)

    assert set(names(answer)[:2]) == {"piano", "workshop"}
    (workshop,) = [each for each in answer["candidates"] if each["skill_name"] == "workshop"]
    assert workshop["similarity"] > 0.9
    assert "similar in meaning" in workshop["reason"]


def test_a_text_is_embedded_once_and_cached_by_its_content(
    garage: Workspace, embeddings: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    first = route(garage, capsys)
    asked = len(embeddings.texts)
    second = route(garage, capsys)
    again = embeddings.texts[asked:]
    garage.write("skills/piano/SKILL.md", "---\nname: piano\ndescription: Tune a grand piano.\n---\nDo it.\n")
    route(garage, capsys)

    assert names(first) == names(second)
    assert again == [REQUEST]
    assert embeddings.texts[asked + 1 :] == [REQUEST, "piano: Tune a grand piano."]


def test_a_run_and_the_command_rank_equally_and_a_replay_sends_nothing(
    garage: Workspace, embeddings: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = names(route(garage, capsys))
    assert garage.agent("run", REQUEST) == 0
    (ranked,) = [event for event in garage.events() if event["event_type"] == "skill_prefilter_completed"]
    asked = len(embeddings.received)
    embeddings.behaviour = "error"
    capsys.readouterr()

    code = garage.agent("replay", garage.run_ids()[-1], "--execute")

    assert [candidate["skill_name"] for candidate in ranked["payload"]["candidates"]] == wanted
    assert code == 0, capsys.readouterr().err
    assert len(embeddings.received) == asked


def test_damaged_cached_vectors_are_requested_again(
    garage: Workspace, embeddings: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    first = route(garage, capsys)
    (file,) = (garage.folder.parent / "cache" / "agent").glob("embeddings-*.vectors")
    content = file.read_bytes()
    for damaged in (content[:-3], content[:-3] + b"xyz", b"", b"vectors 1 x y\n", b"vectors 1 -4 00000000\n"):
        file.write_bytes(damaged)
        asked = len(embeddings.texts)

        assert names(route(garage, capsys)) == names(first)
        assert len(embeddings.texts) - asked == 1 + MANY + 3


@pytest.mark.parametrize("behaviour", ["error", "nonsense", "few", "ragged", "zero", "text", "silent"])
def test_a_failing_server_causes_one_warning_and_ranking_by_words(
    garage: Workspace,
    model: ModelServer,
    embeddings: EmbeddingsServer,
    capsys: pytest.CaptureFixture[str],
    behaviour: Behaviour,
) -> None:
    embeddings.behaviour = behaviour
    if behaviour == "silent":
        configure(garage, model, embeddings, timeout_seconds=0.3)

    assert garage.agent("skills", "route", REQUEST) == 0
    routed = capsys.readouterr()
    assert garage.agent("run", REQUEST) == 0
    told = capsys.readouterr().err

    assert routed.out.split()[1] == "piano"
    assert "workshop" not in routed.out
    assert routed.err.count("ranked by words only") == 1
    assert told.count("ranked by words only") == 1
    assert garage.event_types().count("embeddings_unavailable") == 1


def test_an_unreachable_server_causes_one_warning_and_the_run_continues(
    garage: Workspace, model: ModelServer, embeddings: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    embeddings.url = "http://127.0.0.1:9/v1"
    configure(garage, model, embeddings)

    assert garage.agent("run", REQUEST) == 0

    captured = capsys.readouterr()
    assert captured.err.count("ranked by words only") == 1
    assert "Done." in captured.out


def test_vectors_of_another_length_replace_the_cached_ones(
    garage: Workspace, embeddings: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    first = route(garage, capsys)
    embeddings.behaviour = "longer"
    asked = len(embeddings.texts)

    second = route(garage, capsys)

    assert set(names(second)[:2]) == set(names(first)[:2])
    assert len(embeddings.texts) - asked == 1 + MANY + 3


def test_the_key_is_sent_but_not_shown_and_a_missing_one_is_reported(
    garage: Workspace,
    model: ModelServer,
    embeddings: EmbeddingsServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure(garage, model, embeddings, api_key_env="VECTOR_WORD")
    assert garage.agent("skills", "route", REQUEST) == 0
    missing = capsys.readouterr().err
    monkeypatch.setenv("VECTOR_WORD", "quiet-example-value")

    assert garage.agent("run", f"{REQUEST} quiet-example-value") == 0

    captured = capsys.readouterr()
    assert "'VECTOR_WORD' is not set" in missing
    assert embeddings.keys[-1] == "Bearer quiet-example-value"
    log = (garage.folder / "runs" / garage.run_ids()[-1] / "events.jsonl").read_text(encoding="utf-8")
    assert "quiet-example-value" not in log + captured.out + captured.err
    assert all("quiet-example-value" not in text for text in embeddings.texts)


def test_an_agent_without_access_to_the_server_ranks_by_words(
    garage: Workspace, model: ModelServer, embeddings: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    add_agent(garage.folder, "indoors", "profile: permissive", "web:", "  deny: [embeddings.example.com]")
    embeddings.url = "http://embeddings.example.com/v1"
    configure(garage, model, embeddings)

    assert garage.agent("run", "--agent", "indoors", REQUEST) == 0

    assert "is denied by the settings of this agent" in capsys.readouterr().err
    assert embeddings.received == []


def test_no_embeddings_are_requested_offline_in_a_dry_run_or_for_prompt_show(
    garage: Workspace, embeddings: EmbeddingsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert garage.agent("run", REQUEST, "--dry-run") == 0
    assert garage.agent("prompt", "show", REQUEST) == 0
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "offline")
    assert garage.agent("skills", "route", REQUEST) == 0
    garage.agent("run", REQUEST)

    assert embeddings.received == []


def test_a_clone_cannot_enable_embeddings(
    clone: Workspace,
    model: ModelServer,
    embeddings: EmbeddingsServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = json.dumps({"routing": {"embeddings": {"base_url": embeddings.url}}})
    skill = "---\nname: workshop\ndescription: Repair the engine of a vehicle.\n---\nDo it.\n"
    cloned = fill(clone, {"agent.yaml": settings, "skills/workshop/SKILL.md": skill}, monkeypatch)
    model.follow(says("Done."))

    assert cloned.agent("skills", "route", REQUEST) == 0
    assert cloned.agent("run", REQUEST) == 0
    assert cloned.agent("check") in (0, 1)

    assert "'routing.embeddings.base_url' does not count" in capsys.readouterr().err
    assert embeddings.received == []


def test_vectors_received_before_the_timeout_are_cached(
    garage: Workspace, model: ModelServer, embeddings: EmbeddingsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A large catalog takes several requests; the next command continues after the last one."""
    for number in range(70):
        garage.add_skill(f"song-{number}", f"Sing melody {number}.")
    configure(garage, model, embeddings, timeout_seconds=2)
    embeddings.silent_from = 3

    assert garage.agent("skills", "route", REQUEST) == 0
    assert "ranked by words only" in capsys.readouterr().err
    first = len(embeddings.texts)
    embeddings.silent_from = 0
    embeddings.released.set()
    answer = route(garage, capsys)

    assert set(names(answer)[:2]) == {"piano", "workshop"}
    assert len(embeddings.texts) - first < first
