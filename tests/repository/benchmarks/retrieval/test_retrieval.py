"""The retrieval benchmark at 1/500 of its size, without the engines of others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers.environments import ENVIRONMENTS, Environment
from benchmarks.retrieval import __main__ as retrieval
from benchmarks.retrieval import recall

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def run(module: object, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Runs a program of the benchmark with options."""
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    module.main()  # type: ignore[attr-defined]


def test_retrieval_is_measured_with_every_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The peers would cost minutes where they are installed.
    monkeypatch.setitem(ENVIRONMENTS, "retrieval", Environment("absent", ()))
    options = ("--size", "2000", "--rounds", "1", "--seconds", "0.05", "--dir", str(tmp_path))
    run(retrieval, monkeypatch, *options)
    output = capsys.readouterr().out
    assert "the other engines are left out: not installed" in output
    for title in ("unfiltered", "10 %", "1 %"):
        assert f"{title}, one thread" in output
    # Without a filter, ScaNN runs beside them.
    for name, sheets in (
        ("rowcast, sent again", 3),
        ("rowcast, sent first", 3),
        ("ScaNN, rescored alike", 1),
    ):
        assert output.count(name) == sheets


def test_recall_is_measured_at_every_k_and_filter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recall, "DISTANCES", ("cosine",))
    run(recall, monkeypatch, "--size", "2000", "--queries", "4", "--built-at", "10", "--k", "10")
    output = capsys.readouterr().out
    assert output.count("cosine") == 5
    assert "recall@10" in output
