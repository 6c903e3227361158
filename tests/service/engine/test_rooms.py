"""Calls of fewer examples than the one before: run in its room as it is, or in one that is made anew."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from service.engine import embedding, rooms
from service.engine.steps import Steps
from service.metrics import Metrics
from tests.service.engine.test_parts import CountingTower
from tests.service.running import Running, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
USERS = (3, 1, 2, 8, 1)


class Asking:
    """Has the query tower embed some users, all in this thread."""

    def __init__(self, service: Running) -> None:
        current = service.switch.current("movies")
        assert current is not None
        self.network = CountingTower(current.towers["query"].parts[0].network)
        service.with_network("query", self.network)
        self.generation, self.tower = current, current.towers["query"]
        self.metrics = Metrics()

    def vectors(self, *users: int) -> NDArray[np.float32]:
        steps = Steps("embed", math.inf, self.metrics)
        return embedding.result(self.generation, self.tower, {"user": column(*users)}, len(users), steps)

    def a_row_takes(self, seconds: float) -> None:
        self.tower.result_work.layout_alone.kept.rooms.row_s = seconds


@pytest.fixture
def asking(write: Write, run: Run) -> Asking:
    write()
    return Asking(run())


def test_fewer_examples_have_the_same_bits_in_the_room_of_more(asking: Asking) -> None:
    alone = {n: asking.vectors(*USERS[:n]) for n in range(1, len(USERS) + 1)}  # in room of their own: each is larger
    asking.network.examples.clear()
    for n in (2, 4, 1, 5, 3):
        asking.a_row_takes(0.0)
        assert asking.vectors(*USERS[:n]).tobytes() == alone[n].tobytes()
    assert asking.network.examples == [len(USERS)] * 5
    told = {"model": "movies", "tower": "query", "part": "whole"}
    assert asking.metrics.registry.get_sample_value("rowcast_part_examples_total", told) == 2 * 15  # what was asked


def test_room_is_made_anew_where_examples_take_longer_than_that(asking: Asking) -> None:
    asking.vectors(*USERS)
    asking.a_row_takes(rooms._ANEW_S)
    asking.network.examples.clear()
    asking.vectors(*USERS[:3])
    assert asking.network.examples == [3]


def test_room_is_made_anew_once_as_long_was_computed_in_vain(asking: Asking) -> None:
    asking.vectors(*USERS)
    asking.network.examples.clear()
    for _ in range(3):
        asking.a_row_takes(rooms._ANEW_S / 5)
        asking.vectors(*USERS[:3])
    assert asking.network.examples == [5, 5, 3]
