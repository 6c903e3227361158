from __future__ import annotations

import pytest

from export.frameworks.loading import load_tensorflow
from export.frameworks.placeholders import placeholder_class, restoring_up_to

tf = load_tensorflow()


def test_stand_in_above_the_limit_is_saved_only_where_it_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placeholder_class(), "restored_bytes_max", 16)
    kernel = placeholder_class()(shape=(4, 4), dtype=tf.float32, name="kernel")
    kernel.assign(tf.ones((4, 4)))
    assert kernel._serialize_to_tensors() == {}
    kernel.restored = True
    assert len(kernel._serialize_to_tensors()) == 1
    kernel.restored = None
    with restoring_up_to(64):
        assert len(kernel._serialize_to_tensors()) == 1
    assert kernel._serialize_to_tensors() == {}
