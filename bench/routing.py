"""Quality and speed of routing, on the routing data if it is present.

The data (12,000 public skills with requests written for them) is not part of the repository; without it there is one
row that says so. `bench/routing_entry.py` is the same product behind the scorer that comes with the data.
"""

import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from bench.routing_entry import Tool, index_tools
from bench.routing_folder import folder_rows, repeat_words
from bench.table import Row
from metier.routing.catalog import load_index, save_index
from metier.routing.prefilter import DEFAULT_MIN_SCORE, prefilter
from metier.routing.ranking import RoutingIndex

K = 8
TYPO_SHARE = 0.35
SMALL, SMALL_DRAWS = 500, 5
"""Small catalogs are drawn several times: one of 100 skills answers only about 117 requests."""


class Request(NamedTuple):
    text: str
    relevant: frozenset[str]


class Job(NamedTuple):
    label: str
    tools: Sequence[Tool]
    requests: Sequence[Request]


class Draw(NamedTuple):
    """One catalog drawn from the data, indexed."""

    job: Job
    built: RoutingIndex
    seconds: float


class Limits(NamedTuple):
    recall: float
    build_seconds: float
    query_ms: float


LIMITS = {100: Limits(97.5, 0.6, 1.0), 1_000: Limits(92.5, 0.6, 1.0), 10_000: Limits(83.5, 5.0, 5.0)}


def rows() -> list[Row]:
    data = _find_data()
    if data is None:
        return [Row("routing", "skipped: no data (set ROUTING_DATA to its folder)", "-", holds=True)]
    scorer = _load_scorer(data)
    found: list[Row] = []
    for size, limits in LIMITS.items():
        jobs = _skills_jobs(scorer, data, size)
        draws = [Draw(job, *_timed(lambda job=job: index_tools(job.tools))) for job in jobs]
        found += _quality_rows(draws, limits)
        job, index, seconds = draws[0]
        found += _speed_rows(job, index, limits, seconds=seconds)
        if size == 1_000:
            found.append(_typo_row(scorer, job, index))
        if size == 10_000:
            found += [_cache_row(job, index), _whole_bodies_row(job), *folder_rows(job.tools)]
    return [*found, _metatool_row(scorer, data)]


def _find_data() -> Path | None:
    """The folder that `ROUTING_DATA` names, else `shared/data/routing` beside the repository or above it."""
    places = [parent / "shared" / "data" / "routing" for parent in Path(__file__).resolve().parents]
    named = os.environ.get("ROUTING_DATA")
    return next((place for place in ([Path(named)] if named else places) if (place / "score.py").is_file()), None)


def _quality_rows(draws: Sequence[Draw], limits: Limits) -> list[Row]:
    """Over all draws, each request counted once per draw, as the scorer of the data does it."""
    plain = _mean_recall(draws, min_score=0)
    cut = _mean_recall(draws, min_score=DEFAULT_MIN_SCORE)
    shown = statistics.mean(
        len(prefilter(draw.built, request.text).candidates[:K]) for draw in draws for request in draw.job.requests
    )
    asked = sum(len(draw.job.requests) for draw in draws)
    label = f"{draws[0].job.label}, {asked:,} requests in {len(draws)} {'draw' if len(draws) == 1 else 'draws'}"
    return [
        Row(f"routing recall@8, {label}", f"{plain:.1f} %", f">= {limits.recall} %", plain >= limits.recall),
        Row(
            f"routing recall@8 with the default score, {draws[0].job.label}",
            f"{cut:.1f} %, {shown:.1f} candidates",
            f">= {plain:.1f} %",
            cut >= plain,
        ),
    ]


def _mean_recall(draws: Sequence[Draw], *, min_score: float) -> float:
    asked = sum(len(draw.job.requests) for draw in draws)
    return (
        sum(_recall(draw.built, draw.job.requests, min_score=min_score) * len(draw.job.requests) for draw in draws)
        / asked
    )


def _speed_rows(job: Job, index: RoutingIndex, limits: Limits, *, seconds: float) -> list[Row]:
    times = sorted(_timed(lambda request=request: index.rank(request.text, K))[1] for request in job.requests)
    p95 = 1000 * times[int(0.95 * len(times))]
    build = f"{seconds:.2f} s CPU"
    return [
        Row(
            f"routing index built, {job.label}", build, f"<= {limits.build_seconds} s", seconds <= limits.build_seconds
        ),
        Row(
            f"routing a request p95, {job.label}",
            f"{p95:.2f} ms CPU",
            f"<= {limits.query_ms} ms",
            p95 <= limits.query_ms,
        ),
    ]


def _typo_row(scorer: ModuleType, job: Job, index: RoutingIndex) -> Row:
    noisy = [Request(scorer.add_typos(request.text, TYPO_SHARE), request.relevant) for request in job.requests]
    loss = _recall(index, job.requests, min_score=0) - _recall(index, noisy, min_score=0)
    return Row(f"routing loss by typos in 35 % of long words, {job.label}", f"{loss:.1f}", "<= 0.5", loss <= 0.5)


def _cache_row(job: Job, index: RoutingIndex) -> Row:
    with tempfile.TemporaryDirectory() as name:
        save_index(Path(name), "bench", index)
        loaded, seconds = _timed(lambda: load_index(Path(name), "bench"))
    same = loaded is not None and loaded.rank(job.requests[0].text, K) == index.rank(job.requests[0].text, K)
    return Row(
        f"routing index from the cache, {job.label}", f"{seconds:.2f} s CPU", "<= 0.3 s", same and seconds <= 0.3
    )


def _whole_bodies_row(job: Job) -> Row:
    """In one process, without files."""
    whole: list[Tool] = [{**tool, "body_terms": " ".join(repeat_words(tool))} for tool in job.tools]
    _, seconds = _timed(lambda: index_tools(whole))
    return Row(f"routing index of whole bodies, {job.label}", f"{seconds:.2f} s CPU", "<= 4 s", seconds <= 4)


def _metatool_row(scorer: ModuleType, data: Path) -> Row:
    tools, requests = scorer.load(data, "metatool", "dev", {"description", "tags"})
    recall = _recall(index_tools(tools), _read_requests(requests), min_score=DEFAULT_MIN_SCORE)
    return Row("routing recall@8 with the default score, MetaTool", f"{recall:.1f} %", ">= 75.0 %", recall >= 75.0)


def _recall(index: RoutingIndex, requests: Sequence[Request], *, min_score: float) -> float:
    total = 0.0
    for request in requests:
        found = prefilter(index, request.text, top_k=K, min_score=min_score).candidates[:K]
        total += len(request.relevant & {candidate.skill_id for candidate in found}) / len(request.relevant)
    return 100 * total / len(requests)


def _skills_jobs(scorer: ModuleType, data: Path, size: int) -> list[Job]:
    tools, requests = scorer.load(data, "skills", "dev", {"description", "tags", "body"})
    drawn = [scorer.subcatalog(tools, requests, size, draw) for draw in range(SMALL_DRAWS if size < SMALL else 1)]
    return [Job(f"{size:,} skills", chosen, _read_requests(asked)) for chosen, asked in drawn]


def _read_requests(raw: Sequence[dict[str, Any]]) -> list[Request]:
    return [Request(request["query"], frozenset(request["relevant"])) for request in raw]


def _timed[T](work: Callable[[], T]) -> tuple[T, float]:
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def _load_scorer(data: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("routing_scorer", data / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    for row in rows():
        print(f"{'ok  ' if row.holds else 'MISS'}  {row.name:60} {row.value:32} {row.target}", flush=True)
