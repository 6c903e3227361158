"""The benchmark at 1/5000 of its size: that it runs, never how fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import run as bench
from benchmarks.peers.contenders import RETRIEVAL_PEERS, Peer, fastapi
from benchmarks.peers.environments import Environment
from benchmarks.run import Run
from benchmarks.services import Checkout
from benchmarks.soak import overload
from benchmarks.subjects import Subjects
from tests.repository.benchmarks.conftest import SCALE, printed_by, printed_rows

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


class Here(Environment):
    """The environment of the tests, which has all that the simplest peer needs."""

    problem = ""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subjects]:
    """This checkout with tables that are read through deltas and without, with their services."""
    checkouts = [Checkout("deltas", deltas=2), Checkout("whole")]
    scratch = tmp_path_factory.mktemp("bench")
    with closing(Subjects(scratch, checkouts, SCALE, workers=1)) as subjects:
        yield subjects


@pytest.fixture(scope="module")
def run(subjects: Subjects) -> Run:
    return Run(subjects, rounds=1, seconds=0.05, callers=(2,))


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
        assert float(row[service.columns.index("requests/s by whole")]) > 0
    assert [row[:3] for row in bare.rows] == [
        ("R f32, HTTP protobuf", "2", "2"),
        ("R int8, HTTP protobuf", "2", "2"),
        ("Q, HTTP protobuf", "2", "1"),
        ("Q, HTTP protobuf", "2", "2"),
    ]
    (errors,) = error.rows
    assert 0 < float(errors[1]) < float(errors[3])
    assert 0.5 < float(errors[4]) <= 1
    assert [row[0] for row in index.rows] == ["deltas", "whole"]


def test_run_measures_the_client_beside_bare_calls(run: Run) -> None:
    (calls,) = run.client()
    assert [row[0] for row in calls.rows] == [
        "gRPC, bare stub, message given",
        "gRPC, bare stub",
        "gRPC, rowcast-client",
        "HTTP, bare httpx, JSON",
        "HTTP, rowcast-client",
    ]
    ratios = {row[0]: row[2:] for row in calls.rows}
    assert all(float(ratio) > 0 for ratio in ratios["gRPC, rowcast-client"][:2])
    assert float(ratios["HTTP, rowcast-client"][2]) > 0


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


def test_run_measures_overloads(run: Run) -> None:
    (overloads,) = run.overload()
    assert [row[:2] for row in overloads.rows] == [
        (name, f"{n} x") for name in ("deltas", "whole") for n in (2, 10)
    ]


def test_overload_shows_each_block_by_the_peak_of_another_checkout(
    subjects: Subjects, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = overload.Plan(workloads=("R",), connections=(4,), times=(2,), seconds=0.1)
    overload.run(plan, subjects)
    output = capsys.readouterr().out.splitlines()
    blocks = [line.partition(" ")[2] for line in output if "goodput" in line]
    assert [block.split(",")[0] for block in blocks] == [
        "R http 2 x",
        "R grpc 2 x",
    ]
    assert all("p99 ms of health checks nan" not in block for block in blocks)


def test_run_measures_start_and_memory(run: Run) -> None:
    (starts,) = run.start()
    assert [row[:2] for row in starts.rows] == [("deltas", "1"), ("whole", "1")]
    assert all(float(cell) > 0 for row in starts.rows for cell in row[1:])


def test_command_measures_another_checkout_in_turns_with_this_one() -> None:
    options = ("--scale", str(SCALE), "--rounds", "1", "--seconds", "0.05", "--callers", "1")
    parts = ("--only", "service", "--only", "start")
    output = printed_by("benchmarks", "--against", ".", *options, "--workers", "1", *parts)
    assert "(this), " in output
    rows = printed_rows(output)
    assert [row[0] for row in rows[-2:]] == ["this", "other"]
    assert "requests/s by other" in output
