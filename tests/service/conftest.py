"""Towers compiled once and kept in pytest's cache; bundles written from them for each test."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.engine.occupancy import Occupancy
from tests.service import small_model
from tests.service.running import Running
from tests.service.small_bundle import SmallBundle, compiled_towers, write_small_bundle


@pytest.fixture(scope="session")
def towers(request: pytest.FixtureRequest) -> Path:
    """Compiled towers of every edition; made again when the model's file changes."""
    script = Path(small_model.__file__).read_bytes()
    cache = request.config.cache
    assert cache is not None, "the towers are kept in pytest's cache: run without -p no:cacheprovider"
    return compiled_towers(cache.mkdir("small_towers_" + hashlib.sha256(script).hexdigest()[:16]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory of bundles."""
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    return bundles


@pytest.fixture(scope="session")
def originals() -> dict[str, SmallBundle]:
    """Bundles written in this run of the tests, by how they were: writing syncs every file, copying does not."""
    return {}


@pytest.fixture
def write(
    root: Path, towers: Path, originals: dict[str, SmallBundle], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., SmallBundle]:
    """`write_small_bundle` into `root`."""

    def written(model: str = "movies", version: int = 1, **options: object) -> SmallBundle:
        how = repr((model, version, sorted(options.items())))
        if how not in originals:
            place = tmp_path_factory.mktemp("originals")
            originals[how] = write_small_bundle(place, towers, model, version, **options)  # type: ignore[arg-type]
        aside = root.parent / f"copied-{model}-{version}"
        shutil.copytree(originals[how].directory, aside)
        (root / model).mkdir(exist_ok=True)
        return replace(originals[how], directory=aside.rename(root / model / str(version)))

    return written


@pytest.fixture
def run(root: Path) -> Iterator[Callable[..., Running]]:
    """Starts services without doors over `root`; ends them after the test."""
    started: list[Running] = []

    def begin(occupancy: Occupancy | None = None, **settings: object) -> Running:
        started.append(Running(root, occupancy, **settings))
        return started[-1]

    yield begin
    for each in started:
        each.close()
