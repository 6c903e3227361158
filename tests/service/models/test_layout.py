"""Where features lie: each in the input that takes it first, and copied from there to the others."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from bundle.manifest import TowerInput, TowerPart
from service.models.layout import Copied, Example, Frame, Written, lay_out

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


def test_lay_out_orders_context_features_as_candidates_take_them() -> None:
    layout = lay_out(EXAMPLES, PARTS, CONTEXT)
    assert layout.once == (True, False, False)
    assert layout.frames == (Frame(FLOAT, ("user", "mood", "recent"), (4, 6, 12)), Frame(INTEGER, ("hour",), (1,)))
    both, hour = layout.parts[0]
    assert (both.repeated, both.shape) == ((Copied(0, 2, (0,), 4), Copied(2, 6, (0,), 0)), (6,))
    assert (hour.repeated, hour.shape) == ((Copied(0, 1, (1,), 0),), ())


def test_lay_out_writes_candidate_features_into_the_input_that_takes_them_first() -> None:
    layout = lay_out(EXAMPLES, PARTS, CONTEXT)
    everything, made = layout.parts[1]
    assert everything.written == (Written(6, 10, ("movie", "price"), (3, 4)),)
    assert everything.repeated == (Copied(0, 6, (0,), 0), Copied(10, 16, (0,), 6))  # adjacent ones joined
    assert (made.made, made.width) == ("x", 0)
    some, user = layout.parts[2]
    assert some.written == ()
    assert some.shared == (Copied(0, 1, (1, 0), 9), Copied(1, 4, (1, 0), 6))
    assert (user.repeated, user.shape) == ((Copied(0, 4, (0,), 0),), (4,))
    assert layout.row_bytes == (6 * 4 + 8, 16 * 4, 8 * 4)


def test_lay_out_without_contexts_runs_every_part_for_each_example() -> None:
    layout = lay_out(EXAMPLES, PARTS, ())
    assert (layout.once, layout.frames) == ((False, False, False), ())
    both, hour = layout.parts[0]
    assert both.written == (Written(0, 6, ("mood", "user"), (2, 6)),)
    assert hour.written == (Written(0, 1, ("hour",), (1,)),)
    everything = layout.parts[1][0]
    assert everything.shared == (Copied(0, 4, (0, 0), 2), Copied(4, 6, (0, 0), 0))
    assert everything.written == (Written(6, 16, ("movie", "price", "recent"), (3, 4, 10)),)
