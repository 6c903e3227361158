"""A service over a table of 64 GiB on a machine that has a fraction of it: what is mapped is not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.service.process import Process, until
from tests.service.small_bundle import SmallBundle
from tests.sparse_tables import NAME, add_sparse_table


@pytest.mark.parametrize("workers", [1, 2])
def test_table_of_64_gib_is_served_and_takes_no_memory(
    write: Callable[..., SmallBundle], root: Path, workers: int
) -> None:
    rows = add_sparse_table(write().directory, 64 << 30)
    service = Process(root, "--workers", str(workers), "--verify-bytes-per-s", "0", "--require", "movies")
    try:
        with service.client() as client:
            until(lambda: client.get("/readyz").status_code == 200)
            ids = [0, rows // 2, rows - 1, rows]
            answer = client.post("/v1/models/movies:lookup", json={"feature": NAME, "ids": ids})
        assert answer.json()["found"] == [True, True, True, False]
        program = psutil.Process(service.process.pid)
        for each in [program, *program.children()]:
            assert each.memory_full_info().uss < 200 << 20
        assert service.stop() == 0
    finally:
        service.kill()
