"""The benchmark of routers and shards at 1/5000 of its size: that it runs, never how fast."""

from __future__ import annotations

from itertools import product

import pytest

from tests.repository.benchmarks.conftest import SCALE, printed_by, printed_rows

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
for needed in ("ray.serve", "aiohttp_cors"):  # the second comes with ray[serve] alone
    pytest.importorskip(needed)

PATHS = ("shards called directly", "Ray Serve's handles", "through a proxy", "local tables")
CONTESTANTS = ("replicas, HTTP", "replicas, gRPC", "Serve's ingress, HTTP")
EVENT_LOOPS = ("1", "2, Serve's default")
CALLERS = ("1", "8")


def test_routers_paths_of_rows_and_replicas_are_measured() -> None:
    options = ("--scale", str(SCALE), "--shards", "2", "--rounds", "1", "--seconds", "0.05")
    rows = printed_rows(printed_by("benchmarks.scale", *options))

    routers = rows[:2]
    paths = rows[2:10]
    replicas = rows[10:]
    assert [(row[0], row[-1]) for row in routers] == [("R", "0.0%"), ("Q", "0.0%")]
    assert all(float(row[-2]) > 0.5 for row in routers)  # bytes of responses by bytes of rows

    assert [tuple(row[:2]) for row in paths] == [*product(PATHS, CALLERS)]
    assert [(row[1], row[0], row[2]) for row in replicas] == [
        *product(EVENT_LOOPS, CONTESTANTS, CALLERS)
    ]
    assert all(float(figure) > 0 for row in paths for figure in row[2:])
    assert all(float(figure) > 0 for row in replicas for figure in row[3:])
