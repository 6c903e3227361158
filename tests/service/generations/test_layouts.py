"""Where features lie: each in the input that takes it first, and copied from there to the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bundle.tower_pages import Per
from service.generations.layouts import Copied, Example, Frame, Taken, Written, lay_out

FLOAT, INTEGER = np.dtype(np.float32), np.dtype(np.int64)


@dataclass(frozen=True)
class Part:
    per: Per
    inputs: tuple[Taken, ...]


def taken(name: str, *sources: str, made: bool = False, shape: tuple[int, ...] = (-1,)) -> Taken:
    return Taken(name, sources, made, shape, INTEGER if name == "hour" else FLOAT)


EXAMPLES = {
    "user": Example(FLOAT, (4,)),
    "recent": Example(FLOAT, (2, 3)),
    "mood": Example(FLOAT, (2,)),
    "hour": Example(INTEGER, ()),
    "movie": Example(FLOAT, (3,)),
    "price": Example(FLOAT, ()),
}
PARTS = (
    Part("context", (taken("both", "mood", "user"), taken("hour", "hour", shape=()))),
    Part("candidate", (taken("all", "user", "mood", "movie", "price", "recent"), taken("x", "x", made=True))),
    Part("candidate", (taken("some", "price", "movie"), taken("user", "user", shape=(4,)))),
)
CONTEXT = ("user", "recent", "mood", "hour")


def test_lay_out_puts_a_contexts_features_in_the_order_in_which_candidates_take_them() -> None:
    layout = lay_out(EXAMPLES, PARTS, CONTEXT)
    assert layout.once == (True, False, False)
    assert layout.frames == (Frame(FLOAT, ("user", "mood", "recent"), (4, 6, 12)), Frame(INTEGER, ("hour",), (1,)))
    both, hour = layout.parts[0]
    assert (both.repeated, both.shape) == ((Copied(0, 2, (0,), 4), Copied(2, 6, (0,), 0)), (6,))
    assert (hour.repeated, hour.shape) == ((Copied(0, 1, (1,), 0),), ())


def test_lay_out_looks_candidates_up_into_the_input_that_takes_them_first() -> None:
    everything, made = lay_out(EXAMPLES, PARTS, CONTEXT).parts[1]
    assert everything.written == (Written(6, 10, ("movie", "price"), (3, 4)),)
    assert everything.repeated == (Copied(0, 6, (0,), 0), Copied(10, 16, (0,), 6))  # neighbors as one
    assert (made.made, made.width) == ("x", 0)
    some, user = lay_out(EXAMPLES, PARTS, CONTEXT).parts[2]
    assert some.written == ()
    assert some.shared == (Copied(0, 1, (1, 0), 9), Copied(1, 4, (1, 0), 6))
    assert (user.repeated, user.shape) == ((Copied(0, 4, (0,), 0),), (4,))


def test_lay_out_of_examples_that_are_both_runs_every_part_for_each() -> None:
    layout = lay_out(EXAMPLES, PARTS, ())
    assert (layout.once, layout.frames) == ((False, False, False), ())
    both, hour = layout.parts[0]
    assert both.written == (Written(0, 6, ("mood", "user"), (2, 6)),)
    assert hour.written == (Written(0, 1, ("hour",), (1,)),)
    everything = layout.parts[1][0]
    assert everything.shared == (Copied(0, 4, (0, 0), 2), Copied(4, 6, (0, 0), 0))
    assert everything.written == (Written(6, 16, ("movie", "price", "recent"), (3, 4, 10)),)
