"""Bundles written for each test from the towers that are compiled once; services over them, or a scripted engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import httpx
import pytest

from service.engine.occupancy import Occupancy
from tests.service.doors import RunningDoors, ScriptedEngine, desk_of, settings_of
from tests.service.process import Process
from tests.service.running import Running
from tests.service.small_bundle import SmallBundle, write_small_bundle


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
def run(root: Path) -> Iterator[Callable[..., Running]]:
    """Starts services without doors over `root`; ends them after the test."""
    started: list[Running] = []

    def begin(occupancy: Occupancy | None = None, **settings: object) -> Running:
        started.append(Running(root, occupancy, **settings))
        return started[-1]

    yield begin
    for each in started:
        each.close()


@pytest.fixture
def serve(root: Path) -> Iterator[Callable[..., Process]]:
    """Starts programs over `root`; ends them after the test."""
    started: list[Process] = []

    def start(*options: str) -> Process:
        started.append(Process(root, *options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="session")
def doors(engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDoors]:
    """Both doors in front of it."""
    settings = settings_of(tmp_path_factory.mktemp("root"), body_bytes_max=4096)
    with RunningDoors(desk_of(engine, settings)) as running:
        yield running


@pytest.fixture
def http(doors: RunningDoors, engine: ScriptedEngine) -> Iterator[httpx.Client]:
    engine.forget()
    with httpx.Client(base_url=doors.http, timeout=10) as client:
        yield client


@pytest.fixture
def channel(doors: RunningDoors, engine: ScriptedEngine) -> Iterator[grpc.Channel]:
    engine.forget()
    with grpc.insecure_channel(doors.grpc) as channel:
        yield channel
