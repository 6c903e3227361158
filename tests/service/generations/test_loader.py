"""Estimates and limits of loading; what a failed load leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bundle import retention
from bundle.errors import BundleError
from service.generations.generation import Generation
from service.generations.loader import Loader, LoadRefused, estimate
from service.generations.pauses import Pauses
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]


def no_warm_up(generation: Generation, pause: Pauses) -> None:
    """Leaves a version as it was opened."""


def loader(root: Path, warm_up: Callable[[Generation, Pauses], None] = no_warm_up, limit: int = 0) -> Loader:
    return Loader(root, None, "sizes", 2, limit, warm_up)


def maps() -> int:
    return sum(b"/tables/" in line for line in Path("/proc/self/maps").read_bytes().splitlines())


def test_load_maps_every_table_and_close_unmaps_them(write: Write, root: Path) -> None:
    write()
    before = maps()
    generation = loader(root).load("movies", 1)
    assert maps() == before + 8
    generation.close()
    assert maps() == before


def test_failed_warm_up_leaves_nothing_mapped(write: Write, root: Path) -> None:
    write()
    before = maps()

    def fail(generation: Generation, pause: Pauses) -> None:
        raise LoadRefused("no")

    with pytest.raises(LoadRefused):
        loader(root, fail).load("movies", 1)
    assert maps() == before


def test_broken_index_is_refused_with_nothing_mapped(write: Write, root: Path) -> None:
    small = write()
    os.truncate(small.directory / "indexes/movies/vectors.bin", 16)
    before = maps()
    with pytest.raises(BundleError, match=r"vectors\.bin"):
        loader(root).load("movies", 1)
    assert maps() == before


def test_forecast_counts_every_process_that_loads_the_version(
    write: Write, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write()
    needed = estimate(small.manifest, None, 2)
    monkeypatch.setattr("service.generations.loader.free_bytes", lambda: 3 * needed - 1)
    three = replace(loader(root), processes=lambda: 3)
    told = f"may need {-(-3 * needed >> 20)} MiB of memory beside its tables .*in each of 3 processes.*MiB are free"
    with pytest.raises(LoadRefused, match=told):
        three.load("movies", 1)
    replace(three, processes=lambda: 2).load("movies", 1).close()


def test_estimate_counts_no_table_and_grows_with_the_threads(write: Write) -> None:
    small = write()
    larger = write(version=2, size=4000)
    one, eight = (estimate(small.manifest, None, workers) for workers in (1, 8))
    towers = sum(file.bytes for file in small.manifest.files if file.path.endswith(".tflite"))
    assert eight - one == 7 * towers
    tables = {name: page.model_copy(update={"rows": 10**12}) for name, page in small.manifest.tables.items()}
    assert estimate(small.manifest.model_copy(update={"tables": tables}), None, 1) == one
    assert estimate(larger.manifest, None, 1) > one


def test_estimate_of_a_tower_without_compiled_form_counts_tensorflow(write: Write) -> None:
    small = write(saved_model_only=frozenset({"candidate"}))
    assert estimate(small.manifest, None, 1) > 500 << 20


def test_limit_below_the_estimate_refuses_before_anything_is_opened(write: Write, root: Path) -> None:
    small = write()
    need = estimate(small.manifest, None, 2)
    with pytest.raises(LoadRefused, match="load_bytes_max"):
        loader(root, limit=need - 1).load("movies", 1)
    loader(root, limit=need).load("movies", 1).close()


_LOAD = """
import sys
from pathlib import Path
from service.engine import warm_up
from service.generations.loader import Loader
from service.settings import ServiceSettings
settings = ServiceSettings(root=Path(sys.argv[1]))
run = lambda generation, pause: warm_up.run(generation, settings, pause)
Loader(settings.root, None, "sizes", 1, 0, run).load("movies", 1)
print("pyarrow" in sys.modules, "pyarrow.compute" in sys.modules)
"""


def test_load_imports_no_more_of_arrow_than_reads_stores(write: Write, root: Path) -> None:
    write()
    done = subprocess.run([sys.executable, "-c", _LOAD, str(root)], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]


def test_load_keeps_its_version_from_being_swept_until_it_is_closed(write: Write, root: Path) -> None:
    for version in (1, 2):
        write(version=version)
    generation = loader(root).load("movies", 1)
    assert retention.sweep_old(root, "movies", 1, spare=2) == ([], [1])
    generation.close()
    assert retention.sweep_old(root, "movies", 1, spare=2) == ([1], [])
