"""The current pointer, leases, and what is told when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from service.errors import DataLoss, InvalidArgument, NotFound, NotReady
from service.generations.generation import Generation
from service.generations.policy import Arrangement
from service.generations.switch import Switch


@dataclass(eq=False)
class Loaded:
    """What a switch looks at of a generation."""

    model: str
    version: int
    closed: list[str] = field(default_factory=list)
    memory_bytes: int = 7

    def close(self) -> None:
        self.closed.append(f"{self.model}/{self.version}")


def loaded(model: str = "m", version: int = 1, closed: list[str] | None = None) -> Generation:
    return cast(Generation, Loaded(model, version, [] if closed is None else closed))


def states(switch: Switch) -> dict[str, dict[int, str]]:
    return {model: {each.version: each.state for each in versions} for model, versions in switch.models().items()}


def test_old_generation_without_leases_closes_at_once() -> None:
    switch, closed = Switch(), cast(list[str], [])
    switch.put(loaded(version=1, closed=closed))
    switch.put(loaded(version=2))
    assert closed == ["m/1"]
    assert states(switch) == {"m": {2: "available"}}


def test_leased_generation_closes_with_its_last_lease_only() -> None:
    switch, closed = Switch(), cast(list[str], [])
    switch.put(loaded(version=1, closed=closed))
    first, second = switch.lease("m", None), switch.lease("m", 1)
    switch.put(loaded(version=2))
    assert states(switch) == {"m": {2: "available", 1: "retiring"}}
    first.release()
    first.release()
    assert closed == []
    second.release()
    assert closed == ["m/1"]
    assert states(switch) == {"m": {2: "available"}}


def test_current_generation_outlives_its_leases() -> None:
    switch, closed = Switch(), cast(list[str], [])
    switch.put(loaded(closed=closed))
    with switch.lease("m", None) as generation:
        assert generation.version == 1
    assert closed == []


def test_new_generation_is_current_before_anyone_is_told() -> None:
    switch = Switch()
    seen: list[Any] = []
    switch.subscribe(lambda: seen.append(switch.available()))
    switch.begin("m", 1)
    switch.put(loaded())
    assert seen == [set(), set(), {"m"}]


def test_listener_may_ask_the_switch_for_a_lease() -> None:
    switch = Switch()
    versions: list[int] = []

    def listen() -> None:
        if switch.available():
            with switch.lease("m", None) as generation:
                versions.append(generation.version)

    switch.subscribe(listen)
    switch.put(loaded(version=3))
    assert versions == [3]


def test_damaged_generation_answers_data_loss_until_another_takes_over() -> None:
    switch, closed = Switch(), cast(list[str], [])
    bad = loaded(version=2, closed=closed)
    switch.put(bad)
    lease = switch.lease("m", None)
    assert switch.damage(bad, "block 3 differs")
    with pytest.raises(DataLoss, match="model 'm': block 3 differs"):
        switch.lease("m", None)
    assert states(switch) == {"m": {2: "refused"}}
    switch.put(loaded(version=1))
    assert switch.lease("m", None).generation.version == 1
    lease.release()
    assert closed == ["m/2"]
    assert states(switch) == {"m": {2: "refused", 1: "available"}}


def test_damage_of_a_generation_that_was_replaced_changes_nothing() -> None:
    switch = Switch()
    old = loaded(version=1)
    switch.put(old)
    switch.put(loaded(version=2))
    assert not switch.damage(old, "late")
    assert states(switch) == {"m": {2: "available"}}


def test_refused_version_that_is_forgotten_leaves_no_model_behind() -> None:
    switch = Switch()
    switch.refuse("m", 1, "broken")
    assert states(switch) == {"m": {1: "refused"}}
    switch.forget("m", 1)
    assert switch.models() == {}


def arranged(current: int | None, *loaded: int, previous: int | None = None, **labels: int) -> Arrangement:
    return Arrangement(current, frozenset(loaded), previous, labels)


def versions(switch: Switch, *told: int) -> None:
    for version in told:
        switch.add(loaded(version=version))


def test_loaded_versions_answer_by_number_and_by_label() -> None:
    switch = Switch()
    versions(switch, 1, 2, 3)
    switch.arrange("m", arranged(3, 2, 3, previous=1, stable=2))
    told = [switch.lease("m"), switch.lease("m", 2), switch.lease("m", 1), switch.lease("m", None, "stable")]
    assert [lease.generation.version for lease in told] == [3, 2, 1, 2]
    assert states(switch) == {"m": {3: "available", 2: "available", 1: "kept"}}
    assert [(each.current, each.labels, each.memory_bytes) for each in switch.models()["m"]] == [
        (True, (), 7),
        (False, ("stable",), 7),
        (False, (), 7),
    ]


@pytest.mark.parametrize(
    ("version", "label", "kind", "message"),
    [
        (9, "", NotFound, r"version 9 of model 'm' is not served; versions 2, 1 are"),
        (None, "canary", NotFound, "has no label 'canary'; it has 'bad', 'coming', 'gone', 'stable'"),
        (2, "stable", NotFound, "label 'stable' of model 'm' stands for version 1, not for 2"),
        (None, "gone", NotFound, "version 8 of model 'm', which label 'gone' stands for, is not served"),
        (None, "coming", NotReady, "being loaded"),
        (None, "bad", NotReady, "could not be loaded"),
    ],
)
def test_version_or_label_that_is_not_served_is_told(
    version: int | None, label: str, kind: type[Exception], message: str
) -> None:
    switch = Switch()
    versions(switch, 1, 2)
    switch.begin("m", 4)
    switch.refuse("m", 5, "broken")
    switch.arrange("m", arranged(2, 1, 2, stable=1, gone=8, coming=4, bad=5))
    with pytest.raises(kind, match=message):
        switch.lease("m", version, label)


def test_going_back_and_forth_closes_nothing_that_is_kept() -> None:
    switch, closed = Switch(), cast(list[str], [])
    for version in (1, 2):
        switch.add(loaded(version=version, closed=closed))
    for current, previous in ((2, 1), (1, 2), (2, 1)):
        switch.arrange("m", arranged(current, current, previous=previous))
        with switch.lease("m") as generation:
            assert generation.version == current
    assert closed == []
    switch.arrange("m", arranged(2, 2))
    assert closed == ["m/1"]


def test_damaged_generation_is_replaced_in_the_same_moment_by_what_is_kept() -> None:
    switch = Switch()
    bad = loaded(version=2)
    switch.add(loaded(version=1))
    switch.add(bad)
    switch.arrange("m", arranged(2, 2, previous=1))
    seen: list[int] = []
    switch.subscribe(lambda: seen.append(switch.lease("m").generation.version))
    assert switch.damage(bad, "block 3 differs")
    assert seen == [1]
    assert states(switch) == {"m": {2: "refused", 1: "available"}}


def test_generation_written_again_under_its_number_replaces_itself() -> None:
    switch, closed = Switch(), cast(list[str], [])
    switch.put(loaded(version=1, closed=closed))
    again = loaded(version=1)
    switch.add(again)
    assert switch.current("m") is again
    assert closed == ["m/1"]


def test_suspended_switch_leases_nothing_and_says_why() -> None:
    switch = Switch()
    switch.put(loaded())
    lease = switch.lease("m")
    switch.suspend("drained")
    with pytest.raises(NotReady, match="drained"):
        switch.lease("m")
    assert lease.generation.version == 1
    switch.suspend("")
    assert switch.lease("m").generation.version == 1


def test_close_retires_all_but_waits_for_leases() -> None:
    switch, closed = Switch(), cast(list[str], [])
    switch.put(loaded("a", 1, closed))
    switch.put(loaded("b", 1, closed))
    lease = switch.lease("a", None)
    switch.close()
    assert closed == ["b/1"]
    lease.release()
    assert closed == ["b/1", "a/1"]


def refuse(switch: Switch) -> None:
    switch.refuse("m", 1, "broken")


@pytest.mark.parametrize(
    ("prepare", "model", "kind", "message"),
    [
        (lambda switch: None, "m", NotReady, "no model is loaded yet"),
        (lambda switch: switch.settle(), "", NotReady, "no model is loaded yet"),
        (lambda switch: switch.begin("m", 1), "m", NotReady, "being loaded"),
        (lambda switch: switch.put(loaded("a")), "m", NotReady, "still being loaded"),
        (lambda switch: switch.put(loaded("a")), "", NotReady, "still being loaded"),
        (lambda switch: (switch.put(loaded("a")), switch.settle()), "m", NotFound, "no model 'm'; there are 'a'"),
        (
            lambda switch: (switch.put(loaded("a")), switch.put(loaded("b")), switch.settle()),
            "",
            InvalidArgument,
            "'a', 'b'",
        ),
        (refuse, "m", NotReady, "no version that could be loaded"),
    ],
)
def test_lease_refused_tells_why(
    prepare: Callable[[Switch], Any], model: str, kind: type[Exception], message: str
) -> None:
    switch = Switch()
    prepare(switch)
    with pytest.raises(kind, match=message):
        switch.lease(model, None)


def test_model_named_at_great_length_is_told_in_part() -> None:
    switch = Switch()
    for number in range(30):
        switch.put(loaded(f"model-{number:02}"))
    switch.settle()
    with pytest.raises(NotFound) as refused:
        switch.lease("x" * 10_000, None)
    assert len(str(refused.value)) < 400


def test_generation_of_a_closed_table_is_never_leased(tmp_path: Path) -> None:
    switch, closed = Switch(), cast(list[str], [])
    for version in range(1, 50):
        switch.put(loaded(version=version, closed=closed))
        with switch.lease("m", None) as generation:
            assert f"m/{generation.version}" not in closed
    assert len(closed) == 48
