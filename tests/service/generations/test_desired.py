"""What an operator's words make of what is wanted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.errors import InvalidArgument
from service.generations import desired
from service.generations.desired import Desired, DesiredModel, RolledBack

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
def test_edit_changes_what_it_says_and_nothing_else(wanted: DesiredModel, expected: DesiredModel) -> None:
    assert wanted == expected


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda: desired.unloaded(DesiredModel(labels={"a": 3}), 3, automatic=True), r"labels \['a'\] stand for"),
        (lambda: desired.unloaded(DesiredModel(pinned=(3,)), 3, automatic=True), "the only one that is pinned"),
        (lambda: desired.unlabelled(DesiredModel(labels={"a": 3}), "b"), r"label is 'b'; the model has \['a'\]"),
        (lambda: desired.labelled(NOTHING, "no spaces", 3), "labels.no spaces"),
        (lambda: desired.labelled(NOTHING, "x" * 65, 3), "labels"),
        (lambda: desired.pinned(NOTHING, (0,)), "pinned.0 is '0'"),
    ],
)
def test_edit_that_cannot_be_meant_is_refused(edit: Callable[[], DesiredModel], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        edit()


def test_model_of_which_nothing_is_wanted_any_more_is_not_kept() -> None:
    page = Desired().with_model("m", DesiredModel(pinned=(3,))).with_model("a", DesiredModel(stopped=True))
    assert list(page.models) == ["a", "m"]
    assert page.with_model("m", NOTHING).with_model("a", NOTHING) == Desired()
    assert page.of("other") == NOTHING


def test_page_survives_its_json() -> None:
    page = Desired(revision=4, draining=True, log_level="debug").with_model(
        "m", DesiredModel(labels={"a": 1}, pinned=(1, 2))
    )
    assert Desired.model_validate_json(page.model_dump_json()) == page
