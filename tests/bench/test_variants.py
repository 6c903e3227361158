from __future__ import annotations

from pathlib import Path

import numpy as np

from bundle.staging import check_files, read_manifest
from bundle.tables import TableReader
from tests.bench.variants import write_fewer_rows, write_whole_tower
from tests.bench.workloads import RankingWorkload


def test_variant_with_a_whole_tower_has_no_parts_and_the_same_files(ranking: RankingWorkload, tmp_path: Path) -> None:
    work = write_whole_tower(ranking, tmp_path, "whole")
    page = read_manifest(work.directory)
    check_files(work.directory, page, "full")
    assert page.model == work.model == "whole"
    assert page.towers["ranking"].parts == ()
    assert read_manifest(ranking.directory).towers["ranking"].parts
    shard = page.tables["c00"].shards[0].file
    assert (work.directory / shard).samefile(ranking.directory / shard)


def test_variant_with_fewer_rows_has_the_first_of_each_table(ranking: RankingWorkload, tmp_path: Path) -> None:
    write_fewer_rows(ranking, tmp_path, 4)
    directory = tmp_path / ranking.model / "1"
    page, all_rows = read_manifest(directory), read_manifest(ranking.directory).tables["c00"]
    check_files(directory, page, "full")
    assert page.tables["c00"].rows == all_rows.rows // 4
    fewer, more = TableReader(directory, page.tables["c00"]), TableReader(ranking.directory, all_rows)
    asked = np.array([0, fewer.rows - 1])
    np.testing.assert_array_equal(fewer.gather(asked), more.gather(asked))
    for reader in (fewer, more):
        reader.close()
