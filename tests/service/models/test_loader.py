"""Forecasts and limits of loading; what a failed load leaves behind."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bundle import retention
from service.models.loader import Loader, LoadRejected, forecast_bytes
from service.models.throttle import LoadThrottle
from service.models.version import ModelVersion
from tests.service.models.driven import WarmUp, Write, no_warm_up


def loader(root: Path, warm_up: WarmUp = no_warm_up, limit: int = 0) -> Loader:
    return Loader(root, None, "sizes", 2, limit, warm_up)


def maps() -> int:
    return sum(b"/tables/" in line for line in Path("/proc/self/maps").read_bytes().splitlines())


def test_load_maps_every_table_and_close_unmaps_them(write: Write, root: Path) -> None:
    write()
    before = maps()
    version = loader(root).load("movies", 1)
    assert maps() == before + 8
    version.close()
    assert maps() == before


def test_load_whose_warm_up_fails_leaves_nothing_mapped(write: Write, root: Path) -> None:
    write()
    before = maps()

    def fail(version: ModelVersion, throttle: LoadThrottle) -> None:
        raise LoadRejected("no")

    with pytest.raises(LoadRejected):
        loader(root, fail).load("movies", 1)
    assert maps() == before


def test_load_in_several_processes_needs_memory_for_each(
    write: Write, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write()
    needed = forecast_bytes(small.manifest, None, 2)
    monkeypatch.setattr("service.models.loader.free_bytes", lambda: 3 * needed - 1)
    three = replace(loader(root), processes=lambda: 3)
    message = f"may need {-(-3 * needed >> 20)} MiB of memory beside its tables .*in each of 3 processes.*MiB are free"
    with pytest.raises(LoadRejected, match=message):
        three.load("movies", 1)
    replace(three, processes=lambda: 2).load("movies", 1).close()


def test_forecast_counts_no_table_and_grows_with_the_threads(write: Write) -> None:
    small = write()
    larger = write(version=2, size=4000)
    one, eight = (forecast_bytes(small.manifest, None, threads) for threads in (1, 8))
    towers = sum(file.bytes for file in small.manifest.files if file.path.endswith(".tflite"))
    assert eight - one == 7 * towers
    tables = {name: entry.model_copy(update={"rows": 10**12}) for name, entry in small.manifest.tables.items()}
    assert forecast_bytes(small.manifest.model_copy(update={"tables": tables}), None, 1) == one
    assert forecast_bytes(larger.manifest, None, 1) > one
    saved = write(version=3, saved_model_only=frozenset({"candidate"}))
    assert forecast_bytes(saved.manifest, None, 1) > one + (500 << 20), "it counts TensorFlow"


def test_load_above_its_limit_is_rejected_before_anything_is_opened(write: Write, root: Path) -> None:
    small = write()
    needed = forecast_bytes(small.manifest, None, 2)
    with pytest.raises(LoadRejected, match="max_load_bytes"):
        loader(root, limit=needed - 1).load("movies", 1)
    loader(root, limit=needed).load("movies", 1).close()


_LOAD = """
import sys
from pathlib import Path
from service.models.loader import Loader
Loader(Path(sys.argv[1]), None, "sizes", 1, 0, lambda version, throttle: None).load("movies", 1)
print("pyarrow" in sys.modules, "pyarrow.compute" in sys.modules, "tensorflow" in sys.modules)
"""


def test_load_imports_no_more_of_arrow_than_reads_stores(write: Write, root: Path) -> None:
    write()
    done = subprocess.run([sys.executable, "-c", _LOAD, str(root)], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "False"]


def test_load_keeps_its_version_from_being_swept_until_it_is_closed(write: Write, root: Path) -> None:
    for version in (1, 2):
        write(version=version)
    loaded = loader(root).load("movies", 1)
    assert retention.sweep_old(root, "movies", 1, spare=2) == ([], [1])
    loaded.close()
    assert retention.sweep_old(root, "movies", 1, spare=2) == ([1], [])
