from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.features import columns, one_by_one, open_wide


@pytest.mark.parametrize("n", [1, 7])
def test_wide_request_has_the_same_answers_both_ways(tmp_path: Path, n: int) -> None:
    reader = open_wide(tmp_path, rows=500)
    names, sent = [f"f{number}" for number in range(100)], columns(100, n, rows=500)
    together, alone = reader.activations(names, sent, n), one_by_one(reader, names, sent, n)
    assert all((together[name].values == alone[name].values).all() for name in names)
    reader.close()
