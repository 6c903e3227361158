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


def test_close_of_a_version_that_fails_closes_the_others(manager: VersionManager, closed: list[str]) -> None:
    def fail() -> None:
        raise BufferError("still mapped")

    manager.put(loaded("a", close=fail))
    manager.put(loaded("b", 1, closed))
    manager.close()
    manager.wait_closed()
    assert closed == ["b/1"]


def test_put_makes_a_version_current_before_listeners_are_called(manager: VersionManager) -> None:
    seen: list[Any] = []
    manager.subscribe(lambda: seen.append(manager.available()))
    manager.begin("m", 1)
    manager.put(loaded())
    assert seen == [set(), set(), {"m"}]


def test_damage_without_another_version_is_data_loss_until_one_comes(
    manager: VersionManager, closed: list[str]
) -> None:
    bad = loaded(version=2, closed=closed)
    manager.put(bad)
    lease = manager.acquire("m")
    assert manager.damage(bad, "block 3 differs")
    with pytest.raises(DataLoss, match="model 'm': block 3 differs"):
        manager.acquire("m")
    assert states(manager) == {"m": {2: "failed"}}
    manager.put(loaded(version=1))
    assert manager.acquire("m").version.version == 1
    lease.release()
    manager.wait_closed()
    assert closed == ["m/2"]
    assert states(manager) == {"m": {2: "failed", 1: "available"}}


def test_damage_of_a_version_that_was_replaced_changes_nothing(manager: VersionManager) -> None:
    old = loaded(version=1)
    manager.put(old)
    manager.put(loaded(version=2))
    assert not manager.damage(old, "late")
    assert states(manager) == {"m": {2: "available"}}


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
    manager.begin("m", 4)
    manager.fail("m", 5, "broken")
    manager.arrange("m", arrangement(2, 1, 2, stable=1, gone=8, coming=4, bad=5))
    with pytest.raises(kind, match=message):
        manager.acquire("m", version, label)


def test_suspend_rejects_new_requests_with_the_reason(manager: VersionManager) -> None:
    manager.put(loaded())
    lease = manager.acquire("m")
    manager.suspend("drained")
    with pytest.raises(NotReady, match="drained"):
        manager.acquire("m")
    assert lease.version.version == 1
    manager.suspend("")
    assert manager.acquire("m").version.version == 1


def test_close_retires_all_and_leaves_leased_versions_open(manager: VersionManager, closed: list[str]) -> None:
    manager.put(loaded("a", 1, closed))
    manager.put(loaded("b", 1, closed))
    lease = manager.acquire("a")
    manager.close()
    manager.wait_closed()
    assert closed == ["b/1"]
    lease.release()
    manager.wait_closed()
    assert closed == ["b/1", "a/1"]


@pytest.mark.parametrize(
    ("prepare", "model", "kind", "message"),
    [
        (lambda manager: None, "m", NotReady, "no model is loaded yet"),
        (lambda manager: manager.settle(), "", NotReady, "no model is loaded yet"),
        (lambda manager: manager.begin("m", 1), "m", NotReady, "being loaded"),
        (lambda manager: manager.put(loaded("a")), "m", NotReady, "still being loaded"),
        (lambda manager: manager.put(loaded("a")), "", NotReady, "still being loaded"),
        (lambda manager: (manager.put(loaded("a")), manager.settle()), "m", NotFound, "no model 'm'; there are 'a'"),
        (
            lambda manager: (manager.put(loaded("a")), manager.put(loaded("b")), manager.settle()),
            "",
            InvalidArgument,
            "'a', 'b'",
        ),
        (lambda manager: manager.fail("m", 1, "broken"), "m", NotReady, "no version that could be loaded"),
    ],
)
def test_acquire_without_a_current_version_says_why(
    manager: VersionManager, prepare: Callable[[VersionManager], Any], model: str, kind: type[Exception], message: str
) -> None:
    prepare(manager)
    with pytest.raises(kind, match=message):
        manager.acquire(model)


def test_acquire_a_long_unknown_name_is_answered_in_short(manager: VersionManager) -> None:
    for number in range(30):
        manager.put(loaded(f"model-{number:02}"))
    manager.settle()
    with pytest.raises(NotFound) as problem:
        manager.acquire("x" * 10_000)
    assert len(str(problem.value)) < 400
