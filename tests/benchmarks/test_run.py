"""The benchmark at 1/500 of its size, from workloads to the page: that it runs, never how fast."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import run as bench
from benchmarks.load import Answers, Endpoint
from benchmarks.overload import Overload, Probes
from benchmarks.peers.contenders import (
    RETRIEVAL_PEERS,
    OtherResults,
    Peer,
    Way,
    check_scores,
    fastapi,
    recall_of,
)
from benchmarks.peers.environments import Environment
from benchmarks.report import BEGIN, END, OVERLOAD, Sheet, document
from benchmarks.rounds import Rounds, block_of
from benchmarks.run import Run

pytestmark = pytest.mark.slow


class Here(Environment):
    """The environment of the tests, which has all that the simplest peer needs."""

    problem = ""


def test_run_measures_every_way_in_two_checkouts(run: Run) -> None:
    service, bare, error, index = run.service()
    assert len(service.rows) == 10
    assert {row[0] for row in service.rows} > {
        "R int8, gRPC",
        "Q, HTTP JSON",
        "Q, gRPC, 16 queries",
    }
    for row in service.rows:
        assert len(row) == len(service.columns)
        assert row[service.columns.index("failed")] == "0.0%"
        assert float(row[service.columns.index("requests/s by other")]) > 0
    assert [row[:3] for row in bare.rows] == [
        ("R f32, HTTP protobuf", "2", "2"),
        ("R int8, HTTP protobuf", "2", "2"),
        ("Q, HTTP protobuf", "2", "1"),
        ("Q, HTTP protobuf", "2", "2"),
    ]
    (errors,) = error.rows
    assert 0 < float(errors[1]) < float(errors[3])
    assert 0.5 < float(errors[4]) <= 1
    assert [row[0] for row in index.rows] == ["this", "other"]


def test_run_measures_a_peer_with_the_same_scores_and_lists_those_absent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(".", (), Path(sys.prefix))
    absent = Environment("absent", ())
    monkeypatch.setattr(
        bench, "PEERS", (Peer("FastAPI", here, fastapi), Peer("Absent", absent, fastapi))
    )
    by_hand = RETRIEVAL_PEERS[0]
    monkeypatch.setattr(bench, "RETRIEVAL_PEERS", (replace(by_hand, venv=here),))
    ranked, searched, missing = run.peers()
    assert [(row[0], row[-1]) for row in ranked.rows] == [("FastAPI", "equal")]
    assert [row[0] for row in searched.rows] == ["FastAPI + ScaNN"]
    assert missing.rows == [("Absent", "not installed: make bench-peers")]


def test_run_measures_overloads_start_and_memory(run: Run) -> None:
    (overloads,) = run.overload()
    assert [row[:2] for row in overloads.rows] == [
        (name, f"{n} x") for name in ("this", "other") for n in (2, 10)
    ]
    (start,) = run.start()
    assert all(float(cell) > 0 for row in start.rows for cell in row[1:])


SERVICE = ("request", "callers", "requests/s", "p50 ms", "p99 ms", "CPU ms")
PEERS = (
    "peer",
    *("requests/s, 8 callers", "requests/s, 32 callers"),
    "rowcast f32 by it, each at its best",
    "CPU ms",
    *("p50 / p99 ms, 8", "p50 / p99 ms, 32"),
    *("s to ready", "PSS MiB", "scores"),
)
SHEETS = [
    Sheet(
        "Service, 2 workers",
        SERVICE,
        [
            (way, callers, rate, "1.0", "2.0", "0.5")
            for way in ("R f32, HTTP JSON", "R int8, HTTP JSON", "Q, HTTP JSON")
            for callers, rate in (("8", "600"), ("32", "500"))
        ],
    ),
    Sheet(
        "Bare tower and bare search, in process",
        ("request", "callers", "threads", "requests/s", "bare calls/s", "share", "CPU ms beyond"),
        [
            ("R f32, HTTP protobuf", "8", "2", "600", "700", "0.86", "0.1"),
            ("R int8, HTTP protobuf", "8", "2", "900", "1200", "0.75", "0.1"),
        ],
    ),
    Sheet("Error of int8 on R, by f32", ("mean error", "maximum"), [("0.01", "0.02")]),
    Sheet(
        "Peers on R, over HTTP",
        PEERS,
        [
            (
                "FastAPI",
                "300",
                "400",
                "1.50",
                "2.5",
                "3.0 / 4.0",
                "5.0 / 6.0",
                "3.1",
                "600",
                "equal",
            ),
            (
                "FastAPI, two",
                "500",
                "450",
                "1.20",
                "2.6",
                "7.0 / 8.0",
                "9.0 / 9.5",
                "3.2",
                "900",
                "equal",
            ),
        ],
    ),
    Sheet("Overload", tuple(OVERLOAD), [("2 x", "1000", "0.96", "20", "3.0", "0.1")]),
    Sheet(
        "Start and memory, f32, R and Q loaded",
        ("service", "workers", "s to ready", "PSS MiB, idle", "PSS MiB, after requests"),
        [("this", "1", "0.8", "170", "250"), ("this", "2", "1.2", "300", "409")],
    ),
]


def test_document_writes_all_tables_and_a_summary_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    results = tmp_path / "results"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    document("2026-01-02, commit abc.", SHEETS, page, results)
    tables = (results / "2026-01-02.md").read_text()
    assert all(f"\n### {sheet.title}\n" in tables for sheet in SHEETS)
    targets = tables.partition("###")[0]
    share = "R f32, HTTP protobuf, 8 callers: share of the bare call"
    assert f"| {share} | at least 0.88 | 0.86 | missed |" in targets
    assert "| R int8, HTTP protobuf, 8 callers: share of the bare call | at least 0.7 | 0.75 |" in (
        targets
    )
    assert "times the requests/s of FastAPI, two | at least 1.3 | 1.20 | missed |" in targets

    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n2026-01-02, commit abc.\n\n## Ranking beside")
    assert text.endswith(f"{END}\nafter\n")
    # The better of the two ways to run FastAPI, at its better number of callers.
    assert 'x-axis ["rowcast", "rowcast int8", "FastAPI"]' in text
    assert "bar [600, 600, 500]" in text
    assert "| FastAPI | 32 | 400 | 5.0 / 6.0 | 2.5 | 3.1 | 600 | 1.50 |" in text
    assert "| 0.01 | 0.02 |" in text
    assert "target" not in text


def test_document_needs_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="marks"):
        document("2026-01-02", SHEETS, page, tmp_path)


def test_peer_with_other_scores_is_rejected() -> None:
    class Zeros(Way):
        def call(self, at: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            return np.zeros(2, np.float32)

    way = Zeros(Endpoint(0, "/"), [], lambda _: np.zeros(0, np.float32))
    check_scores(way, [np.zeros(2, np.float32)])
    with pytest.raises(OtherResults, match="request 0"):
        check_scores(way, [np.array([0, 1e-3], np.float32)])


def test_index_with_less_recall_is_rejected() -> None:
    class Fixed(Way):
        def call(self, at: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.arange(10)

    way = Fixed(Endpoint(0, "/"), [], lambda _: np.zeros(0))
    assert recall_of(way, np.arange(10)[np.newaxis]) == 1
    with pytest.raises(OtherResults, match=r"recall 0\.500"):
        recall_of(way, np.arange(5, 15)[np.newaxis])


def answers(statuses: list[float], latency_s: float = 0.1) -> Answers:
    count = len(statuses)
    return Answers(np.zeros(count), np.full(count, latency_s), np.array(statuses), 1.0, 0.01)


def test_rounds_compare_round_by_round() -> None:
    rounds = Rounds(1.0)
    for mine, theirs in ((10, 5), (30, 10), (20, 20)):
        for name, count in (("mine", mine), ("theirs", theirs)):
            rounds.add(name, 8, block_of(answers([200.0] * count), cpu_s=1.0))
    assert rounds.block("mine", 8).per_s == 20
    assert rounds.ratio("mine", "theirs", 8) == 2.0


def test_overload_problems_name_what_must_not_happen() -> None:
    probes = Probes([0.01])
    assert Overload(2, 20, answers([200, 429, 429, 504]), 429, probes, 2, 0.1).problems() == []
    assert Overload(2, 20, answers([200, 429]), 429, probes, math.nan, 0.1).problems() == []
    # A call whose deadline passed in gRPC may have been computed; it was not rejected.
    assert Overload(2, 20, answers([200, 8, 4]), 8, probes, 2, 0.1).problems() == []
    wrong = Overload(2, 20, answers([429, -1]), 429, Probes([0.01], failed=1), 2, 9.0).problems()
    assert len(wrong) == 5
