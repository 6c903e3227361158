"""Current versions, leases, and what is announced when."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.errors import DataLoss, InvalidArgument, NotFound, NotReady
from service.models.manager import VersionManager
from service.models.policy import Arrangement
from service.models.version import ModelVersion


def loaded(
    model: str = "m", version: int = 1, closed: list[str] | None = None, close: Callable[[], object] | None = None
) -> ModelVersion:
    """What a manager looks at of a version."""
    close = close or (lambda: None if closed is None else closed.append(f"{model}/{version}"))
    return cast(ModelVersion, SimpleNamespace(model=model, version=version, memory_bytes=7, close=close))


def states(manager: VersionManager) -> dict[str, dict[int, str]]:
    return {model: {each.version: each.state for each in versions} for model, versions in manager.models().items()}


@pytest.fixture
def manager() -> VersionManager:
    return VersionManager()


@pytest.fixture
def closed() -> list[str]:
    """What was closed."""
    return []


def test_release_of_the_last_lease_closes_a_retired_version(manager: VersionManager, closed: list[str]) -> None:
    manager.put(loaded(version=1, closed=closed))
    first, second = manager.acquire("m"), manager.acquire("m", 1)
    manager.put(loaded(version=2))
    assert states(manager) == {"m": {2: "available", 1: "retiring"}}
    first.release()
    first.release()
    manager.wait_closed()
    assert closed == []
    second.release()
    manager.wait_closed()
    assert closed == ["m/1"]
    assert states(manager) == {"m": {2: "available"}}


def test_release_never_closes_in_the_thread_that_releases(manager: VersionManager) -> None:
    go_on, threads = threading.Event(), list[threading.Thread]()

    def close() -> None:
        assert go_on.wait(20)
        threads.append(threading.current_thread())

    manager.put(loaded(close=close))
    lease = manager.acquire("m")
    manager.put(loaded(version=2))
    lease.release()  # would wait for ever if it closed the version itself
    go_on.set()
    manager.wait_closed()
    assert threads
    assert threading.current_thread() not in threads


def test_close_retires_all_and_leaves_leased_versions_open(manager: VersionManager, closed: list[str]) -> None:
    def fail() -> None:
        raise BufferError("still mapped")

    manager.put(loaded("a", 1, closed))
    manager.put(loaded("b", close=fail))
    manager.put(loaded("c", 1, closed))
    lease = manager.acquire("a")
    manager.close()
    assert closed == ["c/1"]
    lease.release()
    manager.wait_closed()
    assert closed == ["c/1", "a/1"]


def test_damage_without_another_version_is_data_loss_until_one_comes(manager: VersionManager) -> None:
    bad = loaded(version=2)
    manager.put(bad)
    assert manager.damage(bad, "block 3 differs")
    assert not manager.damage(bad, "late")
    with pytest.raises(DataLoss, match="model 'm': block 3 differs"):
        manager.acquire("m")
    manager.put(loaded(version=1))
    assert manager.acquire("m").version.version == 1
    assert states(manager) == {"m": {2: "failed", 1: "available"}}


def test_damage_with_a_kept_version_replaces_it_at_the_same_moment(manager: VersionManager) -> None:
    bad = loaded(version=2)
    manager.add(loaded(version=1))
    manager.add(bad)
    manager.arrange("m", arrangement(2, 2, previous=1))
    seen: list[int] = []
    manager.subscribe(lambda: seen.append(manager.acquire("m").version.version))
    assert manager.damage(bad, "block 3 differs")
    assert seen == [1]
    assert states(manager) == {"m": {2: "failed", 1: "available"}}


def arrangement(current: int | None, *versions: int, previous: int | None = None, **labels: int) -> Arrangement:
    return Arrangement(current, frozenset(versions), previous, labels)


def test_acquire_by_number_and_label_finds_the_loaded_versions(manager: VersionManager) -> None:
    for version in (1, 2, 3):
        manager.add(loaded(version=version))
    manager.arrange("m", arrangement(3, 2, 3, previous=1, stable=2))
    leases = [
        manager.acquire("m"),
        manager.acquire("m", 2),
        manager.acquire("m", 1),
        manager.acquire("m", None, "stable"),
    ]
    assert [lease.version.version for lease in leases] == [3, 2, 1, 2]
    assert states(manager) == {"m": {3: "available", 2: "available", 1: "kept"}}
    assert [(each.current, each.labels, each.memory_bytes) for each in manager.models()["m"]] == [
        (True, (), 7),
        (False, ("stable",), 7),
        (False, (), 7),
    ]


@pytest.mark.parametrize(
    ("version", "label", "kind", "message"),
    [
        (9, "", NotFound, r"version 9 of model 'm' is not served; served: 2, 1"),
        (None, "canary", NotFound, "has no label 'canary'; it has 'bad', 'coming', 'gone', 'stable'"),
        (2, "stable", NotFound, "label 'stable' of model 'm' stands for version 1, not for 2"),
        (None, "gone", NotFound, "version 8 of model 'm', which label 'gone' stands for, is not served"),
        (None, "coming", NotReady, "being loaded"),
        (None, "bad", NotReady, "could not be loaded"),
    ],
)
def test_acquire_version_or_label_that_is_not_served_says_why(
    manager: VersionManager, version: int | None, label: str, kind: type[Exception], message: str
) -> None:
    for number in (1, 2):
        manager.add(loaded(version=number))
    manager.mark("m", 4, "loading")
    manager.mark("m", 5, "failed", "broken")
    manager.arrange("m", arrangement(2, 1, 2, stable=1, gone=8, coming=4, bad=5))
    with pytest.raises(kind, match=message):
        manager.acquire("m", version, label)


@pytest.mark.parametrize(
    ("prepare", "model", "kind", "message"),
    [
        (lambda to: to.settle(), "", NotReady, "no model is loaded yet"),
        (lambda to: to.mark("m", 1, "loading"), "m", NotReady, "being loaded"),
        (lambda to: to.put(loaded("a")), "", NotReady, "still being loaded"),
        (lambda to: (to.put(loaded("a")), to.settle()), "x" * 999, NotFound, "no model 'x{128}'; there are 'a'"),
        (lambda to: (to.put(loaded("a")), to.put(loaded("b")), to.settle()), "", InvalidArgument, "'a', 'b'"),
        (lambda to: to.mark("m", 1, "failed", "broken"), "m", NotReady, "no version that could be loaded"),
        (lambda to: (to.put(loaded("m")), to.suspend("drained")), "m", NotReady, "drained"),
    ],
)
def test_acquire_without_a_current_version_says_why(
    manager: VersionManager, prepare: Callable[[VersionManager], Any], model: str, kind: type[Exception], message: str
) -> None:
    prepare(manager)
    with pytest.raises(kind, match=message):
        manager.acquire(model)
