"""Current versions, leases, and why a version is not served."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.errors import InvalidArgument, NotFound, NotReady
from service.versions.lifecycle import VersionManager
from service.versions.policy import Arrangement
from service.versions.version import ModelVersion


def loaded(
    model: str = "m", version: int = 1, close: Callable[[], object] = lambda: None
) -> ModelVersion:
    """What a manager looks at of a version."""
    return cast(
        ModelVersion, SimpleNamespace(model=model, version=version, memory_bytes=7, close=close)
    )


def serve(manager: VersionManager, version: ModelVersion) -> VersionManager:
    """Makes a version the only one of its model."""
    manager.add(version)
    manager.arrange(version.model, Arrangement(version.version, frozenset((version.version,))))
    return manager


@pytest.fixture
def manager() -> VersionManager:
    return VersionManager()


@pytest.mark.parametrize(
    ("version", "label", "kind", "message"),
    [
        (9, "", NotFound, "served: 2, 1"),
        (
            None,
            "canary",
            NotFound,
            "'bad', 'coming', 'gone', 'stable'",
        ),
        (2, "stable", NotFound, "version 1, not for 2"),
        (
            None,
            "gone",
            NotFound,
            "'gone' stands for, is not served",
        ),
        (None, "coming", NotReady, "being loaded"),
        (None, "bad", NotReady, "could not be loaded"),
    ],
)
def test_acquire_version_or_label_that_is_not_served_reports_why(
    manager: VersionManager, version: int | None, label: str, kind: type[Exception], message: str
) -> None:
    for number in (1, 2):
        manager.add(loaded(version=number))
    manager.mark("m", 4, "loading")
    manager.mark("m", 5, "failed", "broken")
    manager.arrange(
        "m",
        Arrangement(2, frozenset({1, 2}), None, {"stable": 1, "gone": 8, "coming": 4, "bad": 5}),
    )
    with pytest.raises(kind, match=message):
        manager.acquire("m", version, label)


@pytest.mark.parametrize(
    ("prepare", "model", "kind", "message"),
    [
        (lambda to: to.mark("m", 1, "loading"), "m", NotReady, "being loaded"),
        (
            lambda to: (serve(to, loaded("a")), to.settle()),
            "x" * 999,
            NotFound,
            "no model 'x{128}'; .*'a'",
        ),
        (
            lambda to: (serve(to, loaded("a")), serve(to, loaded("b")), to.settle()),
            "",
            InvalidArgument,
            "'a', 'b'",
        ),
        (
            lambda to: to.mark("m", 1, "failed", "broken"),
            "m",
            NotReady,
            "no version that could be loaded",
        ),
        (lambda to: (serve(to, loaded("m")), to.suspend("drained")), "m", NotReady, "drained"),
    ],
)
def test_acquire_without_a_current_version_reports_why(
    manager: VersionManager,
    prepare: Callable[[VersionManager], Any],
    model: str,
    kind: type[Exception],
    message: str,
) -> None:
    prepare(manager)
    with pytest.raises(kind, match=message):
        manager.acquire(model)
