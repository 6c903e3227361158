"""The benchmarks of routers and shards at 1/5000 of their size: that they run, never how fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.workloads import RankingWorkload, RetrievalWorkload

pytestmark = pytest.mark.slow
for needed in ("ray.serve", "aiohttp_cors"):  # the second comes with ray[serve] alone
    pytest.importorskip(needed)

from benchmarks.scale import control_plane, paths, routers  # noqa: E402


@pytest.mark.nightly
def test_a_router_and_one_process_are_measured_on_both_workloads(
    ranking: RankingWorkload, retrieval: RetrievalWorkload, tmp_path: Path
) -> None:
    rows = routers.compare(ranking, retrieval, tmp_path, 2, rounds=1, seconds=0.05).records()
    assert [row["workload"] for row in rows] == ["R", "Q"]
    for row in rows:
        assert row["failed"] == "0.0%"
        assert float(row["bytes of responses / bytes of rows"]) > 0.5


@pytest.mark.nightly
def test_every_path_gives_the_same_rows_and_is_measured(ranking: RankingWorkload) -> None:
    rows = paths.compare(ranking, 2, rounds=1, seconds=0.05).records()
    assert [row["path"] for row in rows[::2]] == [
        paths.DIRECT,
        paths.HANDLES,
        paths.PROXY,
        paths.LOCAL,
    ]
    assert all(float(row["requests/s"]) > 0 for row in rows)


@pytest.mark.nightly
def test_replicas_and_plain_processes_are_measured_over_both_transports(
    small_towers: Path, tmp_path: Path
) -> None:
    rows = control_plane.compare(tmp_path, small_towers, rounds=1, seconds=0.05).records()
    assert {row["contestant"] for row in rows} == {
        "replicas, HTTP",
        "replicas, gRPC",
        "Serve's ingress, HTTP",
    }
    assert all(float(row["requests/s"]) > 0 for row in rows)
