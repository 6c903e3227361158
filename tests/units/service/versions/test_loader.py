"""Forecasts and limits of loading; what a failed load leaves behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.arithmetic import ceil_div
from bundle.errors import BundleError, UnsafePath
from bundle.format.indexes import Codes
from bundle.storage import retention
from runtime.errors import IndexUnreadable
from runtime.vectors import VectorFile
from service.config import ServiceSettings
from service.versions.loader import Loader, LoadRejected, forecast_bytes
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from tests.hostile.manifest_edits import rewrite, setting
from tests.units.service.versions.driven import WarmUp, Write, no_warm_up


def loader(root: Path, warm_up: WarmUp = no_warm_up, **settings: Any) -> Loader:
    return Loader(ServiceSettings(root=root, **settings), 2, warm_up)


def maps() -> int:
    return sum(b"/tables/" in line for line in Path("/proc/self/maps").read_bytes().splitlines())


def test_load_maps_every_table_and_close_or_a_failed_warm_up_unmaps_them(
    write: Write, root: Path
) -> None:
    def fail(version: ModelVersion, throttle: LoadThrottle) -> None:
        raise LoadRejected("no")

    write()
    before = maps()
    version = loader(root).load("movies", 1)
    assert maps() == before + 8
    version.close()
    assert maps() == before
    with pytest.raises(LoadRejected):
        loader(root, fail).load("movies", 1)
    assert maps() == before


def test_load_without_memory_for_each_process_or_above_its_limit_is_rejected(
    write: Write, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write()
    needed = forecast_bytes(small.manifest, None, 2)
    monkeypatch.setattr("service.versions.loader.free_bytes", lambda: 3 * needed - 1)
    message = (
        f"may need {ceil_div(needed, 1 << 20)} MiB of memory in addition to its tables in each "
        "process, .* MiB are free"
    )
    with pytest.raises(LoadRejected, match=message):
        loader(root, workers=3).load("movies", 1)
    loader(root, workers=2).load("movies", 1).close()
    with pytest.raises(LoadRejected, match="max_load_bytes"):
        loader(root, max_load_bytes=needed - 1).load("movies", 1)


def test_load_keeps_its_version_from_being_swept_until_it_is_closed(
    write: Write, root: Path
) -> None:
    for version in (1, 2):
        write(version=version)
    loaded = loader(root).load("movies", 1)
    assert retention.sweep_old(root, "movies", 1, spare=2) == ([], [1])
    loaded.close()
    assert retention.sweep_old(root, "movies", 1, spare=2) == ([1], [])


@pytest.mark.parametrize(
    ("partitions", "problem"),
    [
        (2, r"partition-00000-of-00002' of the bundle is missing"),
        (1 << 16, r"partition-00000-of-65536' of the bundle is missing"),
        (1 << 17, r"indexes.movies.partitions"),
        (0, r"indexes.movies.partitions"),
    ],
)
def test_load_of_an_index_in_partitions_that_are_not_there_is_rejected(
    write: Write, root: Path, partitions: int, problem: str
) -> None:
    rewrite(write().directory, setting("indexes.movies.partitions", partitions))
    with pytest.raises(BundleError, match=problem):
        loader(root).load("movies", 1)


def test_load_of_a_partition_outside_the_bundle_is_rejected(
    write: Write, root: Path, tmp_path: Path
) -> None:
    bundle = write().directory
    index_directory = bundle / "indexes/movies/scann"
    shutil.copytree(index_directory, tmp_path / "aside")
    for number in range(2):
        (index_directory / f"partition-0000{number}-of-00002").symlink_to(tmp_path / "aside")
    rewrite(bundle, setting("indexes.movies.partitions", 2))
    with pytest.raises(UnsafePath, match="outside the bundle"):
        loader(root).load("movies", 1)


def test_codes_of_an_index_are_loaded_and_rejected_where_their_number_is_another(
    write: Write, root: Path
) -> None:
    # faiss is loaded where an index has codes.
    from export.corpora.codes import write_codes

    small = write()
    vectors = VectorFile(small.directory / "indexes/movies/vectors.bin", small.vectors.shape[1])
    write_codes(small.directory, "movies", vectors, "dot_product")
    entry = Codes.of("movies")
    rewrite(small.directory, setting("indexes.movies.codes", entry.model_dump()))
    version = loader(root).load("movies", 1)
    index = version.indexes["movies"].here
    assert index is not None
    assert index.codes is not None
    query = small.vectors[3]
    nearest = int(np.argmax(small.vectors @ query))
    positions = index.codes.pack(np.arange(len(vectors))).nearest(query, len(vectors) // 2)
    assert nearest in positions
    version.close()

    with (small.directory / entry.file).open("ab") as file:
        file.write(bytes(1))
    with pytest.raises(IndexUnreadable, match=r"codes.bin has \d+ bytes; \d+ were expected"):
        loader(root).load("movies", 1)


def test_search_costs_that_cannot_be_true_are_logged(
    write: Write, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {"num_leaves": 4, "leaves_to_search": 2, "dimensions_per_block": 2, "reorder": 20}
    small = write(index_kind="tree_ah", parameters=parameters)
    version = loader(root).load("movies", 1)
    version.close()
    assert not caplog.records
    rewrite(small.directory, setting("indexes.movies.costs.exact_start", 0.0))
    version = loader(root).load("movies", 1)
    version.close()
    (record,) = caplog.records
    assert record.msg == "search_costs_implausible"
    assert "exact_start is 0; for vectors of dim" in str(record.__dict__)
