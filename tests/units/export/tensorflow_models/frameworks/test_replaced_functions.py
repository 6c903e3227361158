"""Replacements of functions and methods of libraries, and their end."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from export.errors import NotConvertible
from export.tensorflow_models.frameworks.hooks import HookPoint, Hooks, copy_of

NAME = "rowcast_test_library"
SOURCE = """
def plain(a, b=2, *, c=3):
    return [a, b, c]

def calls(a):
    return plain(a)

class Base:
    def method(self, a, b=2):
        return [a, b]

    @property
    def size(self):
        return 5

class Derived(Base):
    pass
"""


@pytest.fixture
def library() -> Iterator[Any]:
    """A library, whose functions code may have imported under other names."""
    module = types.ModuleType(NAME)
    exec(SOURCE, vars(module))
    sys.modules[NAME] = module
    yield module
    del sys.modules[NAME]


def point(name: str, takes: str = "") -> HookPoint:
    return HookPoint(NAME, name, takes)


def doubled(original: Any, **arguments: Any) -> Any:
    return original(**arguments) * 2


def test_function_is_replaced_under_all_its_names(library: Any) -> None:
    imported = library.plain
    with Hooks() as hooks:
        hooks.replace(point("plain", "a b c"), doubled)
        assert imported(1) == [1, 2, 3, 1, 2, 3]
        assert library.calls(4) == [4, 2, 3, 4, 2, 3]
        assert imported(1, c=7) == [1, 2, 7, 1, 2, 7]
        with pytest.raises(TypeError):
            imported(1, 2, 3)
    assert imported(1) == [1, 2, 3]


def test_replaced_function_may_be_replaced_again(library: Any) -> None:
    with Hooks() as hooks:
        hooks.replace(point("plain"), doubled)
        with Hooks() as inner:
            inner.replace(point("plain"), doubled)
            assert len(library.plain(1)) == 12
        assert len(library.plain(1)) == 6
    assert len(library.plain(1)) == 3
    remaining = [entry for entry in vars(library).values() if isinstance(entry, dict) and entry]
    assert [entry for entry in remaining if any(isinstance(key, int) for key in entry)] == []


def test_copy_of_a_function_is_not_replaced(library: Any) -> None:
    copied = copy_of(library.plain)
    with Hooks() as hooks:
        hooks.replace(point("plain"), doubled)
        assert copied(1) == [1, 2, 3]
        assert copied(1, 5, c=6) == [1, 5, 6]


def test_method_and_property_are_replaced_and_restored(library: Any) -> None:
    instance = library.Derived()
    with Hooks() as hooks:
        hooks.replace(point("Base.method", "a"), lambda original, self, a: original(self, a, b=9))
        hooks.replace(point("Base.size"), lambda original, self: original(self) + 1)
        assert instance.method(1) == [1, 9]
        assert instance.size == 6
    assert instance.method(1) == [1, 2]
    assert instance.size == 5


def test_inherited_method_is_replaced_in_the_named_class_alone(library: Any) -> None:
    with Hooks() as hooks:
        hooks.replace(point("Derived.method"), lambda *_: "replaced")
        assert library.Derived().method(1) == "replaced"
        assert library.Base().method(1) == [1, 2]
    assert library.Derived().method(1) == [1, 2]
    assert "method" not in vars(library.Derived)


def test_attribute_of_an_object_is_restored() -> None:
    owner = types.SimpleNamespace(value=1)
    with Hooks() as hooks:
        hooks.set_attribute(owner, "value", 2)
        assert owner.value == 2
    assert owner.value == 1


def test_static_method_is_restored_as_one() -> None:
    class Owner:
        @staticmethod
        def value() -> int:
            return 1

    with Hooks() as hooks:
        hooks.set_attribute(Owner, "value", staticmethod(lambda: 2))
        assert Owner().value() == 2
    assert Owner().value() == 1


def test_library_that_is_not_imported_stays(library: Any) -> None:
    with Hooks() as hooks:
        hooks.replace(HookPoint("no_such_library", "plain"), doubled)
        assert library.plain(1) == [1, 2, 3]


def test_point_without_a_parameter_that_a_replacement_needs_is_rejected(library: Any) -> None:
    assert point("Base.size", "").find() == (library.Base, "size", library.Base.size)
    with pytest.raises(KeyError):
        point("plain", "a d").find()


def reject(_: Any, **arguments: Any) -> Any:
    raise NotConvertible(f"no {arguments['a']}")


def while_rejected(call: Callable[[], Any]) -> None:
    """Runs a call while the function `plain` rejects its argument."""
    with Hooks() as hooks:
        hooks.replace(point("plain"), reject)
        call()


@pytest.mark.parametrize("wrapped", [False, True])
def test_rejection_in_a_replacement_leaves_the_block_with_the_users_line(
    wrapped: bool, library: Any
) -> None:
    def call() -> None:
        try:
            library.plain("table")
        except NotConvertible as problem:
            if wrapped:
                raise RuntimeError("in call of a layer") from problem
            raise

    pattern = r"^no table \(test_replaced_functions.py:\d+\)$"
    with pytest.raises(NotConvertible, match=pattern):
        while_rejected(call)


def test_line_that_a_rejection_names_is_not_repeated() -> None:
    twice = Hooks().watched(Hooks().watched(reject))
    with pytest.raises(NotConvertible, match=r"^no table \(test_replaced_functions.py:\d+\)$"):
        twice(None, a="table")


def test_other_error_in_the_block_leaves_it_unchanged() -> None:
    def fail() -> None:
        raise ZeroDivisionError("own")

    with pytest.raises(ZeroDivisionError, match="own"):
        while_rejected(fail)


def test_rejection_that_the_model_caught_does_not_leave_the_block(library: Any) -> None:
    def call() -> None:
        with pytest.raises(NotConvertible):
            library.plain("table")

    while_rejected(call)
