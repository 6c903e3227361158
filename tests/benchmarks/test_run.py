"""The benchmark at 1/500 of its size, from workloads to the page: that it runs, never how fast."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import run as bench
from benchmarks.load import Answers, Endpoint
from benchmarks.overload import Overload, Probes
from benchmarks.peers.contenders import OtherScores, Peer, Way, check_scores, fastapi
from benchmarks.peers.environments import Environment
from benchmarks.report import BEGIN, END, RESULTS, Sheet, document
from benchmarks.rounds import Rounds, block_of
from benchmarks.run import Run

pytestmark = pytest.mark.slow


class Here(Environment):
    """The environment of the tests, which has all that the simplest peer needs."""

    problem = ""


def test_run_measures_every_way_in_two_checkouts(run: Run) -> None:
    service, bare = run.service()
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
    assert [row[0] for row in bare.rows] == ["f32", "int8", "search"]


def test_run_measures_a_peer_with_the_same_scores_and_lists_those_absent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(".", (), Path(sys.prefix))
    absent = Environment("absent", ())
    monkeypatch.setattr(
        bench, "PEERS", (Peer("FastAPI", here, fastapi), Peer("Absent", absent, fastapi))
    )
    measured, missing = run.peers()
    assert [row[0] for row in measured.rows] == ["FastAPI"]
    assert missing.rows == [("Absent", "not installed: make bench-peers")]


def test_run_measures_overloads_start_and_memory(run: Run) -> None:
    (overloads,) = run.overload()
    assert [row[:2] for row in overloads.rows] == [
        (name, f"{n} x") for name in ("this", "other") for n in (2, 10)
    ]
    (start,) = run.start()
    assert all(float(cell) > 0 for row in start.rows for cell in row[1:])


def test_document_writes_all_tables_and_a_summary_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    results = tmp_path / "results"
    tables = (RESULTS / "2026-11-22.md").read_text()
    sheets = [read_sheet(text) for text in tables.split("\n### ")[1:]]
    how = tables.split("\n")[2]
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    document(how, sheets, page, results)
    assert (results / "2026-11-22.md").read_text() == tables
    assert page.read_text().startswith(f"before\n{BEGIN}\n{how}\n\n## Ranking beside other servers")
    assert page.read_text().endswith(f"{END}\nafter\n")
    assert "| R f32, gRPC: share of the bare call's requests/s | at least 0.82 | 0.71 |" in tables
    assert "target" not in page.read_text()
    page.write_text("no marks")
    with pytest.raises(ValueError, match="marks"):
        document("how", [], page)


def read_sheet(text: str) -> Sheet:
    title, _, *lines = text.strip().split("\n")
    columns, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return Sheet(title, columns, rows)


def test_peer_with_other_scores_is_rejected() -> None:
    class Zeros(Way):
        def call(self, at: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            return np.zeros(2, np.float32)

    way = Zeros(Endpoint(0, "/"), [], lambda _: np.zeros(0, np.float32))
    check_scores(way, [np.zeros(2, np.float32)])
    with pytest.raises(OtherScores, match="request 0"):
        check_scores(way, [np.array([0, 1e-3], np.float32)])


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
