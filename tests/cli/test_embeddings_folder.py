"""`routing.embeddings.folder` end to end: a local model, combined with words, cached, recorded."""

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cloned_folder import fill
from embeddings_folder import WORDS, Tensor, build_table, build_tokenizer, build_vectors, serialize, write_model
from embeddings_server import CONCEPTS
from model_server import ModelServer, says
from run_workspace import QUICK, Workspace, use_model

MANY = 12
REQUEST = "tune my automobile please"
ALONE = "anked by words only"
PACKAGES = ("safetensors", "tokenizers")


@pytest.fixture
def shed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Skills, one of which has the meaning of the request in other words, and a model; no chat model answers."""
    shed = Workspace(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder in (shed.folder, tmp_path / "home"):
        folder.mkdir()
    monkeypatch.chdir(shed.folder)
    fill_garage(shed)
    shed.configure(model={"provider": "offline"}, routing={"embeddings": {"folder": "models/small"}})
    return shed


@pytest.fixture
def garage(workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The same with a chat model that answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(workspace.folder.parent / "cache"))
    fill_garage(workspace)
    configure(workspace, model)
    model.follow(says("Done."))
    return workspace


def fill_garage(workspace: Workspace) -> None:
    write_model(workspace.folder / "models/small")
    workspace.add_skill("workshop", "Repair the engine of a vehicle.")
    workspace.add_skill("piano", "Tune a piano.")
    for number in range(MANY):
        workspace.add_skill(f"paper-{number}", f"File an invoice in drawer {number}.")


def configure(workspace: Workspace, model: ModelServer, folder: str = "models/small", **more: object) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK, routing={"embeddings": {"folder": folder, **more}})


def route(workspace: Workspace, capsys: pytest.CaptureFixture[str], request: str = REQUEST) -> dict[str, Any]:
    capsys.readouterr()
    assert workspace.agent("skills", "route", request, "--json") == 0
    return json.loads(capsys.readouterr().out)


def names(answer: dict[str, Any]) -> list[str]:
    return [candidate["skill_name"] for candidate in answer["candidates"]]


def find_workshop(answer: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in answer["candidates"] if each["skill_name"] == "workshop")


def list_kept(workspace: Workspace) -> list[Path]:
    return sorted((workspace.folder.parent / "cache/agent").glob("embeddings-*.vectors"))


def test_embeddings_find_a_skill_without_shared_words_and_words_still_count(
    shed: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = route(shed, capsys)

    assert set(names(answer)[:2]) == {"piano", "workshop"}
    assert find_workshop(answer)["similarity"] == 1.0
    assert "similar in meaning" in find_workshop(answer)["reason"]


def test_a_run_ranks_equally_and_a_replay_needs_neither_folder_nor_packages(
    garage: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = names(route(garage, capsys))
    assert garage.agent("run", REQUEST) == 0
    (ranked,) = [event for event in garage.events() if event["event_type"] == "skill_prefilter_completed"]
    shutil.rmtree(garage.folder / "models")
    shutil.rmtree(garage.folder.parent / "cache")
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)
    capsys.readouterr()

    code = garage.agent("replay", garage.run_ids()[-1], "--execute")

    assert [candidate["skill_name"] for candidate in ranked["payload"]["candidates"]] == wanted
    assert code == 0, capsys.readouterr().err
    assert ALONE not in capsys.readouterr().err


def test_a_text_is_embedded_once_and_cached_by_its_content(shed: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    first = route(shed, capsys)
    (written,) = list_kept(shed)
    before = written.stat().st_ino
    second = route(shed, capsys)
    unchanged = written.stat().st_ino
    shed.write("skills/piano/SKILL.md", "---\nname: piano\ndescription: Tune the music of a song.\n---\nDo it.\n")
    route(shed, capsys)

    assert names(first) == names(second)
    assert before == unchanged != written.stat().st_ino


def test_a_changed_model_gets_new_vectors_despite_equal_size_and_time(
    shed: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process still has the old model in memory."""
    file = shed.folder / "models/small/model.safetensors"
    old = file.stat()
    assert "workshop" in names(route(shed, capsys))

    others = [[*CONCEPTS[0], "automobile"], [word for word in CONCEPTS[1] if word != "automobile"], CONCEPTS[2]]
    file.write_bytes(serialize({"embeddings": build_table(build_vectors(others))}))
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    answer = route(shed, capsys)

    assert file.stat().st_size == old.st_size
    assert "workshop" not in names(answer)[:2]
    assert next(each for each in answer["candidates"] if each["similarity"] == 1.0)["skill_name"].startswith("paper")
    assert len(list_kept(shed)) == 2


def test_vectors_of_at_most_four_models_are_cached(shed: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(6):
        vectors = [[each + number / 10 for each in vector] for vector in build_vectors()]
        write_model(shed.folder / "models/small", {"embeddings": build_table(vectors)})
        route(shed, capsys)

    assert len(list_kept(shed)) == 4


@pytest.mark.parametrize("kind", ["float64", "float16", "int8"])
def test_other_number_types_give_the_same_ranking(
    shed: Workspace, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    wanted = route(shed, capsys)
    write_model(shed.folder / "models/small", {"embeddings": build_table(kind=kind)})

    assert route(shed, capsys) == wanted


def test_a_sentence_transformers_folder_is_supported(shed: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = route(shed, capsys)
    folder = shed.folder / "models/small"
    shutil.rmtree(folder)
    write_model(folder / "0_StaticEmbedding", {"embedding.weight": build_table()})
    parts = [{"type": f"sentence_transformers.models.{name}"} for name in ("StaticEmbedding", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(parts), encoding="utf-8")

    assert route(shed, capsys) == wanted


def test_a_model_with_fewer_vectors_than_tokens_and_token_weights_is_supported(
    shed: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The format of model2vec for words that share vectors."""
    table = build_table([[9, -9, 9], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0.6, 0.8]])
    rows = [vector.index(1) + 1 if 1 in vector else 0 for vector in build_vectors()]
    rows[WORDS.index("vehicle")] = 4
    weights = [1.0 if word != "engine" else 3.0 for word in WORDS]
    parts = {
        "embeddings": table,
        "mapping": Tensor(rows, (len(rows),), "int64"),
        "weights": Tensor(weights, (len(weights),)),
    }
    write_model(shed.folder / "models/small", parts)

    # The engine thrice, (0, 3, 0), and the vehicle, (0, 0.6, 0.8), beside the automobile, (0, 1, 0).
    assert find_workshop(route(shed, capsys))["similarity"] == pytest.approx(3.6 / math.hypot(3.6, 0.8), abs=0.005)


def test_a_request_without_a_word_known_to_the_model_is_ranked_by_words(
    shed: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shed.agent("skills", "route", "tune \udcff it") == 0

    captured = capsys.readouterr()
    assert captured.out.split()[1] == "piano"
    assert "similar in meaning" not in captured.out
    assert ALONE not in captured.err


def test_local_embeddings_also_rank_offline_and_for_a_plan(
    garage: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = names(route(garage, capsys))
    assert garage.agent("run", REQUEST, "--dry-run") == 0
    (ranked,) = [event for event in garage.events() if event["event_type"] == "skill_prefilter_completed"]
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "offline")

    assert [candidate["skill_name"] for candidate in ranked["payload"]["candidates"]] == wanted
    assert names(route(garage, capsys)) == wanted


def test_a_shown_prompt_has_the_order_of_the_run(shed: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert shed.agent("prompt", "show", REQUEST) == 0

    shown = capsys.readouterr().out
    assert 0 < shown.index("Repair the engine of a vehicle") < shown.index("File an invoice in drawer 0")


def test_links_in_a_folder_outside_the_project_may_point_anywhere(
    garage: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model hub's cache has folders of links to files elsewhere."""
    wanted = route(garage, capsys)
    outside = Path(os.environ["HOME"]) / "hub"
    shutil.move(garage.folder / "models/small", outside / "blobs")
    (outside / "snapshot").mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (outside / "snapshot" / name).symlink_to(Path("../blobs", name))
    configure(garage, model, str(outside / "snapshot"))

    assert route(garage, capsys) == wanted


def test_a_folder_in_the_home_folder_can_be_configured(
    garage: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = route(garage, capsys)
    shutil.move(garage.folder / "models/small", Path(os.environ["HOME"]) / "small")
    configure(garage, model, "~/small")

    assert route(garage, capsys) == wanted


def test_a_server_and_a_folder_together_are_refused(
    garage: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(garage, model, base_url="http://127.0.0.1:9/v1")

    assert garage.agent("skills", "route", REQUEST) == 2
    assert "routing.embeddings.folder must be empty if base_url is set" in capsys.readouterr().err


def put(name: str, content: bytes | str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def put_table(tensor: Tensor, **others: Tensor) -> Callable[[Path], None]:
    return put("model.safetensors", serialize({"embeddings": tensor, **others}))


def remove(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def make_onnx(folder: Path) -> None:
    remove("model.safetensors")(folder)
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_bytes(b"\x08\x07")


def make_huge(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1024**3)  # takes no room on disk


def make_pipe(folder: Path) -> None:
    remove("tokenizer.json")(folder)
    os.mkfifo(folder / "tokenizer.json")


def link_out(folder: Path) -> None:
    file = folder / "model.safetensors"
    away = folder.parents[2] / "away.safetensors"
    shutil.move(file, away)
    file.symlink_to(away)


def make_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


NO_NUMBERS = [[math.nan, 1, 0] for _ in WORDS]
PANIC = json.loads(build_tokenizer()) | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}
DENSE = json.dumps([{"type": "a.StaticEmbedding"}, {"type": "a.Dense"}])
TALL = 16
FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no folder": (shutil.rmtree, "does not exist", "Correct routing.embeddings.folder"),
    "a file": (make_file, "is not a folder", "Correct routing.embeddings.folder"),
    "no weights": (remove("model.safetensors"), "it has no 'model.safetensors'", "Use a static model"),
    "no tokenizer": (remove("tokenizer.json"), "has no 'tokenizer.json'", "Fetch the model again"),
    "onnx": (make_onnx, "it has no 'model.safetensors'", "routing.embeddings.base_url"),
    "cut short": (cut_short, "has a damaged 'model.safetensors'", "Fetch the model again"),
    "empty weights": (put("model.safetensors", b""), "has a damaged 'model.safetensors'", "Fetch the model again"),
    "pickle": (put("model.safetensors", b"\x80\x04" * 9), "has a damaged", "Fetch the model again"),
    "no numbers": (put_table(build_table(NO_NUMBERS)), "has non-finite weights", "Fetch the model again"),
    "one dimension": (put_table(Tensor([1.0] * TALL, (TALL,))), "has 16 numbers", "Fetch the model again"),
    "three dimensions": (put_table(Tensor([1.0] * TALL, (TALL, 1, 1))), "16 x 1 x 1 numbers", "Fetch the model"),
    "empty rows": (put_table(Tensor([], (len(WORDS), 0))), "13 x 0 numbers", "Fetch the model again"),
    "few vectors": (put_table(build_table(build_vectors()[:-1])), "don't match", "Fetch the model again"),
    "mapping out": (
        put_table(build_table(), mapping=Tensor([99] * len(WORDS), (len(WORDS),), "int64")),
        "don't match",
        "Fetch the model again",
    ),
    "short weights": (put_table(build_table(), weights=Tensor([1.0], (1,))), "don't match", "Fetch"),
    "transformer": (
        put("model.safetensors", serialize({"embeddings.word_embeddings.weight": build_table()})),
        "it has a tensor 'embeddings.word_embeddings.weight'",
        "Use a static model",
    ),
    "more than a table": (put_table(build_table(), head=build_table()), "it has a tensor 'head'", "Use a static model"),
    "more parts": (put("modules.json", DENSE), "it has a part 'Dense'", "Use a static model"),
    "brain floats": (put_table(build_table(kind="bfloat16")), "of the kind 'BF16'", "Use a static model"),
    "huge": (make_huge, "has 1024 MB; the limit is 640 MB", "Use a smaller model"),
    "no tokens": (put("tokenizer.json", "{}"), "'tokenizer.json' that cannot be used", "Fetch the model again"),
    "panic": (put("tokenizer.json", json.dumps(PANIC)), "'tokenizer.json' that cannot be used", "Fetch the model"),
    "bytes": (put("tokenizer.json", b"\xff\xfe"), "'tokenizer.json' that cannot be used", "Fetch the model again"),
    "pipe": (make_pipe, "cannot be read: it is not a regular file", "Make it readable"),
    "link out": (link_out, "cannot be read: it is a link out of 'work'", "correct routing.embeddings.folder"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_unusable_folder_causes_one_message_and_ranking_by_words(
    shed: Workspace, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    change, said, advice = FAULTS[fault]
    change(shed.folder / "models/small")

    assert shed.agent("skills", "route", REQUEST) == 0
    routed = capsys.readouterr()
    assert shed.agent("check") == 0
    checked = capsys.readouterr().err

    assert routed.out.split()[1] == "piano"
    assert "workshop" not in routed.out
    (line,) = [line for line in routed.err.splitlines() if ALONE in line]
    assert said in line
    assert advice in line
    (line,) = [line for line in checked.splitlines() if "embeddings_unavailable" in line]
    assert said in line
    assert advice in line


def test_a_run_reports_an_unusable_folder_once_and_continues(
    garage: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_short(garage.folder / "models/small")

    assert garage.agent("run", REQUEST) == 0
    captured = capsys.readouterr()
    assert garage.agent("doctor", "--json") == 0
    (found,) = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "embeddings"]

    assert captured.err.count(ALONE) == 1
    assert "has a damaged 'model.safetensors'" in captured.err
    assert "Done." in captured.out
    assert garage.event_types().count("embeddings_unavailable") == 1
    assert found["state"] == "problem"
    assert found["hint"] == "Fetch the model again"


def test_a_usable_model_passes_check_and_doctor(garage: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert garage.agent("check") == 0
    checked = capsys.readouterr()
    assert garage.agent("doctor", "--json") == 0
    (found,) = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "embeddings"]

    assert "embeddings_unavailable" not in checked.err
    assert "1 other file" in checked.out
    assert found["state"] == "ok"


@pytest.mark.parametrize("package", PACKAGES)
def test_missing_packages_are_reported_with_the_extra_to_install(
    garage: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    for command in (("skills", "route", REQUEST), ("run", REQUEST), ("check",)):
        assert garage.agent(*command) == 0
        captured = capsys.readouterr()
        assert captured.err.count(ALONE) == 1, command
        assert f"needs the package '{package}', which is not installed" in captured.err
        assert "Install it: " in captured.err
        assert "[embeddings]" in captured.err


def test_a_slow_model_is_reported_with_the_timeout_setting(
    garage: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(garage, model, timeout_seconds=0.000001)

    assert garage.agent("skills", "route", REQUEST) == 0

    assert "was not ready within 1e-06 seconds. Try again" in capsys.readouterr().err


def test_a_folder_named_by_an_untrusted_clone_is_not_read(
    clone: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = write_model(clone.folder.parent / "away")
    settings = json.dumps({"routing": {"embeddings": {"folder": str(away)}}})
    skill = "---\nname: workshop\ndescription: Repair the engine of a vehicle.\n---\nDo it.\n"
    cloned = fill(clone, {"agent.yaml": settings, "skills/workshop/SKILL.md": skill}, monkeypatch)
    (away / "model.safetensors").unlink()
    os.mkfifo(away / "model.safetensors")
    model.follow(says("Done."))

    assert cloned.agent("skills", "route", REQUEST) == 0
    assert cloned.agent("run", REQUEST) == 0
    assert cloned.agent("check") in (0, 1)
    before = capsys.readouterr().err
    assert cloned.agent("trust") == 0
    assert cloned.agent("skills", "route", REQUEST) == 0
    after = capsys.readouterr().err

    assert "'routing.embeddings.folder' does not count" in before
    assert ALONE not in before
    assert "it is not a regular file" in after
