"""What each command makes of the desired state."""

from __future__ import annotations

import pytest

from service.admin.commands import COMMANDS, ModelCommand, ModelFacts
from service.errors import NotFound, NotReady, ServiceError
from service.versions.desired_state import DENIED_MAX, DesiredModel, RolledBack

NOTHING = DesiredModel()
BACK = RolledBack(to=3, above=5)
MANY = DesiredModel(denied=tuple(map(str, range(DENIED_MAX - 1))))
FACTS = ModelFacts(existing=frozenset({1, 2, 3, 4, 5}), current=5, previous=4)


def edit(
    name: str, before: DesiredModel, arguments: dict[str, object], facts: ModelFacts = FACTS
) -> DesiredModel:
    command = COMMANDS[name].model_validate(arguments)
    assert isinstance(command, ModelCommand)
    return command.edit(before, facts)


@pytest.mark.parametrize(
    ("name", "before", "arguments", "after"),
    [
        ("load", NOTHING, {"version": 3}, DesiredModel(loaded=(3,))),
        ("load", NOTHING, {"version": 5}, NOTHING),
        ("load", DesiredModel(unloaded=(5,)), {"version": 5}, NOTHING),
        ("load", DesiredModel(stopped=True), {}, NOTHING),
        ("unload", DesiredModel(loaded=(3,)), {"version": 3}, NOTHING),
        ("unload", NOTHING, {"version": 4}, DesiredModel(unloaded=(4,))),
        ("unload", NOTHING, {"version": 5}, DesiredModel(unloaded=(5,))),
        ("unload", NOTHING, {}, DesiredModel(stopped=True)),
        ("unload", DesiredModel(pinned=(2, 3)), {"version": 2}, DesiredModel(pinned=(3,))),
        (
            "pin",
            DesiredModel(unloaded=(2,), stopped=True),
            {"versions": [2, 1, 2]},
            DesiredModel(pinned=(1, 2)),
        ),
        ("unpin", DesiredModel(pinned=(2,), labels={"a": 1}), {}, DesiredModel(labels={"a": 1})),
        ("unpin", DesiredModel(rolled_back=RolledBack(to=2, above=5)), {}, NOTHING),
        (
            "rollback",
            DesiredModel(pinned=(3,)),
            {"version": 2},
            DesiredModel(rolled_back=RolledBack(to=2, above=5)),
        ),
        ("rollback", NOTHING, {}, DesiredModel(rolled_back=RolledBack(to=4, above=5))),
        (
            "rollback",
            DesiredModel(unloaded=(4,)),
            {},
            DesiredModel(rolled_back=BACK, unloaded=(4,)),
        ),
        (
            "label",
            DesiredModel(labels={"a": 4}),
            {"label": "a", "version": 5},
            DesiredModel(labels={"a": 5}),
        ),
        (
            "unlabel",
            DesiredModel(labels={"stable": 4, "a": 1}),
            {"label": "stable"},
            DesiredModel(labels={"a": 1}),
        ),
        (
            "deny/add",
            DesiredModel(denied=("7",)),
            {"ids": [7, "a", -5, "a"]},
            DesiredModel(denied=("-5", "7", "a")),
        ),
        (
            "deny/remove",
            DesiredModel(denied=("5", "7", "a")),
            {"ids": ["5", 7]},
            DesiredModel(denied=("a",)),
        ),
    ],
)
def test_edit_changes_what_it_names_and_nothing_else(
    name: str, before: DesiredModel, arguments: dict[str, object], after: DesiredModel
) -> None:
    assert edit(name, before, arguments) == after


@pytest.mark.parametrize(
    ("name", "before", "arguments", "message"),
    [
        (
            "unload",
            DesiredModel(labels={"a": 3}),
            {"version": 3},
            r"has labels \['a'\]; remove them first",
        ),
        ("unload", DesiredModel(pinned=(3,)), {"version": 3}, "the only one that is pinned"),
        (
            "unlabel",
            DesiredModel(labels={"a": 3}),
            {"label": "b"},
            r"label is 'b'; the model has \['a'\]",
        ),
        (
            "label",
            DesiredModel(labels={f"l{n}": 1 for n in range(1000)}),
            {"label": "b", "version": 1},
            "labels is",
        ),
        ("rollback", NOTHING, {"version": 5}, "one before the current version 5"),
        (
            "deny/remove",
            DesiredModel(denied=("7",)),
            {"ids": [7, 8, 9]},
            "2 of 3 ids are not denied, such as '8'",
        ),
        (
            "deny/add",
            MANY,
            {"ids": ["x", "y"]},
            "would have 100001 ids; at most 100000 are accepted",
        ),
    ],
)
def test_edit_that_contradicts_the_state_is_invalid(
    name: str, before: DesiredModel, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ServiceError, match=message):
        edit(name, before, arguments)


def test_rollback_without_a_version_before_the_current_one_is_rejected() -> None:
    with pytest.raises(NotFound, match="no version before 1"):
        edit("rollback", NOTHING, {}, ModelFacts(frozenset({1, 2}), current=1))
    with pytest.raises(NotReady, match="no current version"):
        edit("rollback", NOTHING, {}, ModelFacts(frozenset({1, 2})))
