"""What a version answers before it is served, and what is there for its first callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from runtime.towers import CompiledTower
from tests.service.running import WORKERS, Running
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def test_warm_up_pauses_after_every_request(write: Write, run: Run) -> None:
    small = write()
    service = run()
    generation = service.switch.current("movies")
    assert generation is not None
    pauses = list[None]()
    service.engine.warm_up(generation, lambda: pauses.append(None))
    tables, towers, searches, asked = (
        len(small.tables),
        2 * len(generation.towers),
        2,
        len(generation.towers) + 2,
    )  # ranks, recommends
    assert len(pauses) == tables + towers + searches + asked


def test_load_leaves_an_interpreter_of_every_tower_to_each_compute_thread_and_the_loop(write: Write, run: Run) -> None:
    write()
    service = run()
    generation = service.switch.current("movies")
    assert generation is not None
    for tower in generation.towers.values():
        for part in tower.parts:
            assert len(cast(CompiledTower, part.network)._spare) == WORKERS + 1
