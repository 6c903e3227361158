"""What each edit makes of the desired state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.errors import InvalidArgument
from service.models import desired_state as desired
from service.models.desired_state import Desired, DesiredModel, RolledBack

NOTHING = DesiredModel()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (desired.loaded(NOTHING, 3, automatic=False), DesiredModel(loaded=(3,))),
        (desired.loaded(NOTHING, 3, automatic=True), NOTHING),
        (desired.loaded(DesiredModel(unloaded=(3,)), 3, automatic=True), NOTHING),
        (desired.loaded(DesiredModel(stopped=True), None, automatic=False), NOTHING),
        (desired.unloaded(DesiredModel(loaded=(3,)), 3, automatic=False), NOTHING),
        (desired.unloaded(NOTHING, 3, automatic=True), DesiredModel(unloaded=(3,))),
        (desired.unloaded(NOTHING, None, automatic=True), DesiredModel(stopped=True)),
        (desired.unloaded(DesiredModel(pinned=(2, 3)), 3, automatic=False), DesiredModel(pinned=(2,))),
        (
            desired.pinned(DesiredModel(unloaded=(2, 3), stopped=True), (2, 1, 2)),
            DesiredModel(pinned=(1, 2), unloaded=(3,)),
        ),
        (desired.unpinned(DesiredModel(pinned=(2,), labels={"a": 1})), DesiredModel(labels={"a": 1})),
        (desired.rolled_back(DesiredModel(pinned=(3,)), 2, 5), DesiredModel(rolled_back=RolledBack(to=2, above=5))),
        (desired.unpinned(DesiredModel(rolled_back=RolledBack(to=2, above=5))), NOTHING),
        (desired.labelled(NOTHING, "stable", 4), DesiredModel(labels={"stable": 4})),
        (desired.labelled(DesiredModel(labels={"stable": 4}), "stable", 5), DesiredModel(labels={"stable": 5})),
        (desired.unlabelled(DesiredModel(labels={"stable": 4, "a": 1}), "stable"), DesiredModel(labels={"a": 1})),
    ],
)
def test_edit_changes_what_it_names_and_nothing_else(wanted: DesiredModel, expected: DesiredModel) -> None:
    assert wanted == expected


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda: desired.unloaded(DesiredModel(labels={"a": 3}), 3, automatic=True), r"has labels \['a'\]"),
        (lambda: desired.unloaded(DesiredModel(pinned=(3,)), 3, automatic=True), "the only one that is pinned"),
        (lambda: desired.unlabelled(DesiredModel(labels={"a": 3}), "b"), r"label is 'b'; the model has \['a'\]"),
        (lambda: desired.labelled(NOTHING, "no spaces", 3), "labels.no spaces"),
        (lambda: desired.labelled(NOTHING, "x" * 65, 3), "labels"),
        (lambda: desired.pinned(NOTHING, (0,)), "pinned.0 is '0'"),
    ],
)
def test_edit_that_contradicts_the_state_is_invalid(edit: Callable[[], DesiredModel], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        edit()


def test_with_model_default_entry_is_not_kept() -> None:
    state = Desired().with_model("m", DesiredModel(pinned=(3,))).with_model("a", DesiredModel(stopped=True))
    assert list(state.models) == ["a", "m"]
    assert state.with_model("m", NOTHING).with_model("a", NOTHING) == Desired()
    assert state.of("other") == NOTHING
