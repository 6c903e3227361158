"""Where features lie: each in the input that takes it first, and copied from there to the others."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from bundle.manifest import TowerInput, TowerPart
from service.models.layout import Example, Frame, Span, lay_out

FLOAT, INTEGER = np.dtype(np.float32), np.dtype(np.int64)


def part(per: Literal["context", "candidate"], *inputs: TowerInput) -> TowerPart:
    return TowerPart(name="part", per=per, inputs=inputs, outputs=(), forms=())


def taken(name: str, *features: str, shape: tuple[int | None, ...] = (None,), **source: Any) -> TowerInput:
    dtype = "int64" if name == "hour" else "float32"
    return TowerInput(name=name, features=features, dtype=dtype, shape=(None, *shape), **source)


EXAMPLES = {
    "user": Example(FLOAT, (4,)),
    "recent": Example(FLOAT, (2, 3)),
    "mood": Example(FLOAT, (2,)),
    "hour": Example(INTEGER, ()),
    "movie": Example(FLOAT, (3,)),
    "price": Example(FLOAT, ()),
}
PARTS = (
    part("context", taken("both", "mood", "user"), taken("hour", "hour", shape=())),
    part("candidate", taken("all", "user", "mood", "movie", "price", "recent"), taken("x", tensor="x")),
    part("candidate", taken("some", "price", "movie"), taken("user", "user", shape=(4,))),
)
CONTEXT = ("user", "recent", "mood", "hour")


def places(spans: tuple[Span, ...]) -> list[tuple[object, ...]]:
    """Returns columns, source and first column of each."""
    return [(each.start, each.stop, each.source, each.first) for each in spans]


def test_lay_out_repeats_context_features_and_shares_those_of_candidates() -> None:
    layout = lay_out(EXAMPLES, PARTS, CONTEXT)
    assert layout.once == (True, False, False)
    assert layout.frames == (Frame(FLOAT, ("user", "mood", "recent"), (4, 6, 12)), Frame(INTEGER, ("hour",), (1,)))
    both, hour = layout.parts[0]
    assert (places(both.repeated), both.shape) == ([(0, 2, (0,), 4), (2, 6, (0,), 0)], (6,))
    assert (places(hour.repeated), hour.shape) == ([(0, 1, (1,), 0)], ())
    everything, made = layout.parts[1]
    assert [(each.start, each.names, each.ends) for each in everything.written] == [(6, ("movie", "price"), (3, 4))]
    assert places(everything.repeated) == [(0, 6, (0,), 0), (10, 16, (0,), 6)], "adjacent ones are joined"
    assert (made.made, made.width) == ("x", 0)
    some, user = layout.parts[2]
    assert some.written == ()
    assert places(some.shared) == [(0, 1, (1, 0), 9), (1, 4, (1, 0), 6)]
    assert (places(user.repeated), user.shape) == ([(0, 4, (0,), 0)], (4,))
    assert layout.row_bytes == (6 * 4 + 8, 16 * 4, 8 * 4)


def test_lay_out_without_contexts_runs_every_part_for_each_example() -> None:
    layout = lay_out(EXAMPLES, PARTS, ())
    assert (layout.once, layout.frames) == ((False, False, False), ())
    both, hour = layout.parts[0]
    everything = layout.parts[1][0]
    written = [(each.start, each.names, each.ends) for one in (both, hour, everything) for each in one.written]
    rest = (6, ("movie", "price", "recent"), (3, 4, 10))
    assert written == [(0, ("mood", "user"), (2, 6)), (0, ("hour",), (1,)), rest]
    assert places(everything.shared) == [(0, 4, (0, 0), 2), (4, 6, (0, 0), 0)]
