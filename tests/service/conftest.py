"""Bundles written for each test from the towers that are compiled once, and services over them on loopback."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.small_bundle import SmallBundle, write_small_bundle

if TYPE_CHECKING:
    from tests.service.process import Process
    from tests.service.running import RunningService


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
    root: Path, small_towers: Path, originals: dict[str, SmallBundle], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., SmallBundle]:
    """`write_small_bundle` into `root`."""

    def written(model: str = "movies", version: int = 1, **options: object) -> SmallBundle:
        how = repr((model, version, sorted(options.items())))
        if how not in originals:
            place = tmp_path_factory.mktemp("originals")
            originals[how] = write_small_bundle(place, small_towers, model, version, **options)  # type: ignore[arg-type]
        aside = root.parent / f"copied-{model}-{version}"
        shutil.copytree(originals[how].directory, aside)
        (root / model).mkdir(exist_ok=True)
        return replace(originals[how], directory=aside.rename(root / model / str(version)))

    return written


@pytest.fixture
def serve(root: Path) -> Iterator[Callable[..., RunningService]]:
    """Starts services in this process, with both transports on loopback; ends them after the test."""
    from tests.service.running import RunningService

    started: list[RunningService] = []

    def start(**settings: Any) -> RunningService:
        started.append(RunningService(root, **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def launch(root: Path) -> Iterator[Callable[..., Process]]:
    """Starts `rowcast-serve` over `root`; kills it after the test."""
    from tests.service.process import Process

    started: list[Process] = []

    def start(*options: str) -> Process:
        started.append(Process(root, *options))
        return started[-1]

    yield start
    for each in started:
        each.kill()
