"""The comparison of gRPC stacks, tiny: that it runs, never how fast."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.bench.grpc_stacks import CALLERS, OWN, measure, show


def test_stacks_answer_all_they_are_asked_and_are_told(tmp_path: Path) -> None:
    found = measure([OWN, "grpc.aio"], 1, 0.05, tmp_path)
    assert [cost.name for cost in found] == [OWN, "grpc.aio"]
    assert all(set(cost.cpu_us) == set(CALLERS) for cost in found)
    console = Console(record=True, width=140)
    show(found, console)
    assert "grpc.aio" in console.export_text()
