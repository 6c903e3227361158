from __future__ import annotations

import pytest

from export.errors import NotConvertible
from export.graphs import internals
from export.graphs.hooks import HookPoint
from export.graphs.loading import load_tensorflow


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
