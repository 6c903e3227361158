"""What workers say of their models, as one answer."""

from __future__ import annotations

from service.engine.descriptions import ModelState
from service.generations.shelf import VersionState
from service.workers.models import agreed


def model(name: str, *versions: VersionState) -> ModelState:
    return ModelState(name, versions)


def test_workers_that_agree_are_told_as_one() -> None:
    state = model("movies", VersionState(2, "available"), VersionState(1, "refused", "no disk"))
    assert agreed({0: (state,), 1: (state,)}) == (state,)


def test_version_is_as_far_as_the_worker_that_is_furthest_from_serving_it() -> None:
    here = model("movies", VersionState(2, "available"), VersionState(1, "retiring"))
    there = model("movies", VersionState(2, "loading"))
    told = agreed({0: (here,), 3: (there,)})
    assert told == (model("movies", VersionState(2, "loading", "worker 3: loading"), VersionState(1, "retiring")),)


def test_refusal_by_one_worker_is_told_with_its_reason() -> None:
    there = model("movies", VersionState(2, "refused", "it may need 9 MiB"))
    told = agreed({0: (model("movies", VersionState(2, "available")),), 1: (there,)})
    assert told[0].versions == (VersionState(2, "refused", "worker 1: it may need 9 MiB"),)


def test_model_that_one_worker_has_found_is_told() -> None:
    told = agreed({0: (), 1: (model("b"), model("a"))})
    assert [each.name for each in told] == ["a", "b"]
