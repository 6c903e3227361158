from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import pytest

from export.errors import NotConvertible
from export.frameworks import hook_points
from export.frameworks.hooks import HookPoint, Hooks
from export.frameworks.loading import load_tensorflow


def added(first: int, second: int = 2, *, third: int = 3) -> int:
    return first + second + third


def test_hooked_function_is_replaced_under_every_name_and_restored() -> None:
    bound = added

    def doubled(original: Any, **how: Any) -> int:
        return 2 * int(original(**how))

    with Hooks() as hooks:
        hooks.replace_function(added, doubled)
        assert bound(1) == 12
        with Hooks() as more:
            more.replace_function(added, doubled)
            assert bound(1, third=0) == 12
        assert bound(1, 1, third=1) == 6
    assert bound(1) == 6


def all_points() -> list[HookPoint]:
    """Returns every point of the table, alone or in a tuple or dict."""
    found: list[HookPoint] = []
    queue = list(vars(hook_points).values())
    while queue:
        each = queue.pop()
        if isinstance(each, HookPoint):
            found.append(each)
        elif isinstance(each, tuple | dict):
            queue += each.values() if isinstance(each, dict) else each
    return sorted(found, key=lambda point: (point.module, point.name))


@pytest.mark.parametrize("point", all_points(), ids=lambda point: f"{point.module}.{point.name}")
def test_installed_release_has_every_hook_point(point: HookPoint) -> None:
    load_tensorflow()
    pytest.importorskip(point.module.partition(".")[0])
    assert point.find() is not None


def test_release_that_moved_a_hook_point_names_the_release_to_install() -> None:
    load_tensorflow()
    moved = HookPoint("tensorflow.python.ops.array_ops", "squeeze", "input place")
    with pytest.raises(NotConvertible, match=r"squeeze\(input, place\) is not in .* tensorflow.*'tensorflow~=2.20.0'"):
        moved.find()
    with pytest.raises(NotConvertible, match="no_such_function"):
        HookPoint("tensorflow.python.ops.array_ops", "no_such_function").find()


def test_library_that_no_model_imports_is_left_alone() -> None:
    assert HookPoint("no_such_library.layers", "Embedding.call").find() is None


class Layer:
    def call(self, inputs: int) -> int:
        return inputs + 1


def test_replaced_method_keeps_its_signature_and_its_errors_are_unwrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("made_library")
    library.Layer = Layer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_library", library)
    layer = Layer()

    def answer(original: Any, self: Layer, inputs: int) -> int:
        if inputs < 0:
            raise NotConvertible("below zero")
        return 10 * int(original(self, inputs))

    def call() -> None:
        with Hooks() as hooks:
            hooks.replace(HookPoint("made_library", "Layer.call", "inputs"), answer)
            assert layer.call(1) == 20
            assert list(inspect.signature(layer.call).parameters) == ["inputs"]
            try:
                layer.call(-1)
            except NotConvertible as problem:
                raise ValueError("pages of a framework") from problem

    with pytest.raises(NotConvertible, match=r"^below zero"):
        call()
    assert layer.call(1) == 2
