"""A feature that crosses an input of the context with one of the candidate: each candidate's with its own context."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bundle.manifest import CrossedIds, CrossKey, EmbeddedFeature
from service.engine.requests import Ranked, Ranking, Target
from service.errors import InvalidArgument
from tests.service.running import CALL, Running, column
from tests.service.small_bundle import GENRES, SmallBundle

KEYS = (CrossKey(dtype="int64", role="context"), CrossKey(dtype="string", role="candidate", default=[]))
CROSSED = EmbeddedFeature(
    kind="bag",
    table="genres",
    role="candidate",
    inputs=("user", "genres"),
    ids=CrossedIds(keys=KEYS, buckets=GENRES),
    combiner="sum",
)


@pytest.fixture
def service(write: Callable[..., SmallBundle], run: Callable[..., Running]) -> Running:
    write(features={"genres": CROSSED}, without=frozenset({"indexes"}))
    return run()


def rank(service: Running, users: list[int], ids: list[int], offsets: list[int]) -> Ranked:
    request = Ranking(Target(), {"user": column(*users)}, candidate_ids=np.array(ids), offsets=np.array(offsets))
    return service.ask(service.engine.rank(request, CALL))


def test_each_candidate_is_crossed_with_its_own_context(service: Running) -> None:
    ids = [1007, 1014, 1035, 1042, 1077]
    together = rank(service, [3, 44, 9], ids, [0, 2, 2, 5])
    alone = np.concatenate([rank(service, [3], ids[:2], [0, 2]).scores, rank(service, [9], ids[2:], [0, 3]).scores])
    np.testing.assert_allclose(together.scores, alone, 1e-6, 1e-6)
    others = rank(service, [9], ids[:2], [0, 2]).scores
    assert not np.allclose(others, alone[:2], 1e-3)


def test_input_of_the_context_is_asked_for_by_its_name(service: Running) -> None:
    with pytest.raises(InvalidArgument, match="'user': a value must be sent"):
        service.ask(service.engine.rank(Ranking(Target(), {}, candidate_ids=np.array([1007])), CALL))
