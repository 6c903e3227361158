"""What several workers say of their models, as one service's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from service.engine.descriptions import ModelState
from service.generations.shelf import VersionState

_BY_TROUBLE = ("refused", "loading", "retiring", "kept", "available")
"""States of a version; of two workers' states the earlier one is the service's: not all callers get an answer of it."""


def agreed(workers: Mapping[int, tuple[ModelState, ...]]) -> tuple[ModelState, ...]:
    """Returns the models of all workers, by name.

    A version that is not in the same state in all of them is told in that of the worker which is furthest from serving
    it, with its number.
    """
    found: dict[str, list[tuple[int, ModelState]]] = {}
    for worker, models in workers.items():
        for model in models:
            found.setdefault(model.name, []).append((worker, model))
    return tuple(_model(each) for _, each in sorted(found.items()))


def _model(each: list[tuple[int, ModelState]]) -> ModelState:
    versions: dict[int, list[tuple[int, VersionState]]] = {}
    for worker, model in each:
        for version in model.versions:
            versions.setdefault(version.version, []).append((worker, version))
    return replace(each[0][1], versions=tuple(_version(versions[number]) for number in sorted(versions, reverse=True)))


def _version(each: list[tuple[int, VersionState]]) -> VersionState:
    worker, worst = min(each, key=lambda one: _trouble(one[1].state))
    if all(state.state == worst.state for _, state in each):
        return worst
    return replace(worst, problem=f"worker {worker}: {worst.problem or worst.state}")


def _trouble(state: str) -> int:
    return _BY_TROUBLE.index(state) if state in _BY_TROUBLE else 0
