from __future__ import annotations

import pytest

from export.errors import NotConvertible
from export.graphs import internals
from export.graphs.loading import load_tensorflow
from export.tensorflow_models.frameworks import hook_points
from export.tensorflow_models.frameworks.hooks import HookPoint


def all_points() -> list[HookPoint]:
    """Returns every point of the table, alone or in a tuple or dict."""
    points: list[HookPoint] = []
    queue = list(vars(hook_points).values())
    while queue:
        entry = queue.pop()
        if isinstance(entry, HookPoint):
            points.append(entry)
        elif isinstance(entry, tuple | dict):
            queue += entry.values() if isinstance(entry, dict) else entry
    return sorted(points, key=lambda point: (point.module, point.name))


@pytest.mark.parametrize("point", all_points(), ids=lambda point: f"{point.module}.{point.name}")
def test_installed_release_has_every_hook_point(point: HookPoint) -> None:
    load_tensorflow()
    pytest.importorskip(point.module.partition(".")[0])
    assert point.find() is not None


def test_release_that_moved_a_hook_point_names_the_release_to_install() -> None:
    load_tensorflow()
    moved = HookPoint("tensorflow.python.ops.array_ops", "squeeze", "input place")
    with pytest.raises(
        NotConvertible,
        match=r"squeeze\(input, place\) is not in tensorflow 2\..*'tensorflow>=2.20,<2.22'",
    ):
        moved.find()
    with pytest.raises(NotConvertible, match="no_such_function"):
        HookPoint("tensorflow.python.ops.array_ops", "no_such_function").find()


def test_release_that_moved_a_private_method_names_the_release_to_install() -> None:
    operation_without_it = object()
    moved = r"_update_input is not in tensorflow 2\..*'tensorflow>=2.20,<2.22'"
    with pytest.raises(NotConvertible, match=moved):
        internals.set_input(operation_without_it, 0, None)


def test_hooks_leave_libraries_alone_that_no_model_imports() -> None:
    assert HookPoint("no_such_library.layers", "Embedding.call").find() is None
