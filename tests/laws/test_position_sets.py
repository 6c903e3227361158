"""Sets of positions are sets: whatever is added and removed, with compiled code and without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle import native
from bundle.tables.position_sets import PositionSet

EACH_WAY = pytest.mark.parametrize(
    "is_compiled",
    [False, pytest.param(True, marks=pytest.mark.skipif(native.mark is None, reason="no code"))],
)


@st.composite
def positions(draw: st.DrawFn, size: int) -> NDArray[np.uint32]:
    """Some positions, in any order and perhaps twice; dense ones, too."""
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    count = draw(st.integers(0, 40))
    top = draw(st.sampled_from([size, min(size, 20)]))
    chosen = random.integers(0, top, count).astype(np.uint32)
    return np.sort(chosen) if draw(st.booleans()) else chosen


@EACH_WAY
@given(data=st.data())
def test_set_holds_what_was_added_and_not_removed_since(
    is_compiled: bool, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 300))
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            for name in ("mark", "marked", "where_marked"):
                patch.setattr(native, name, None)
        actual = (
            PositionSet.all(size)
            if data.draw(st.booleans())
            else PositionSet.of(np.empty(0, np.uint32), size)
        )
        expected = {*range(size)} if len(actual) else set[int]()
        for step in data.draw(st.lists(st.sampled_from("+-&|\\"), max_size=8)):
            some = data.draw(positions(size))
            others = {*some.tolist()}
            if step == "+":
                actual.add(some)
                expected |= others
            elif step == "-":
                actual.remove(some)
                expected -= others
            elif step == "&":
                actual &= PositionSet.of(some, size)
                expected &= others
            elif step == "|":
                actual |= PositionSet.of(some, size)
                expected |= others
            else:
                actual -= PositionSet.of(some, size)
                expected -= others
        assert actual.positions().tolist() == sorted(expected)
        assert len(actual) == len(expected)
        asked = data.draw(positions(size))
        held = [index for index, position in enumerate(asked.tolist()) if position in expected]
        assert actual.where(asked).tolist() == held
