"""Draws computations of ids, and those of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.differential.random_models.integer_rules import (
    chosen,
    limited,
    nested,
    remainder,
    rows_themselves,
    shifted,
    stated,
)
from tests.differential.random_models.key_rules import (
    hashed_integers,
    hashed_text,
    known_integers,
    known_text,
    looked_up,
)
from tests.differential.random_models.rules import Rule, Wanted


def buckets(wanted: Wanted) -> Rule:
    draft = wanted.draft
    options = np.array([-2.5, -1.0, 0.0, 0.1, 0.25, 1.0, 3.0, 1e6], np.float32)
    size = draft.integer(1, min(5, wanted.rows - 1))
    boundaries = sorted(draft.sample(options.tolist(), size))
    near = [
        float(np.nextafter(np.float32(boundary), np.float32(side), dtype=np.float32))
        for boundary in boundaries
        for side in (-np.inf, np.inf)
    ]
    pool = (*boundaries, *near, -1e30, 1e30, -0.0, 0.5)
    if wanted.is_tensorflow and wanted.is_single and draft.chance(0.5):
        side = draft.choice("left", "right")
        return Rule("float32", pool, f'tf.searchsorted({boundaries}, {{ids}}, side="{side}")')
    return Rule("float32", pool, wanted.layer(f"layers.Discretization({boundaries})"))


def whole_numbers(wanted: Wanted) -> Rule:
    draft = wanted.draft
    dialect = draft.dialect
    library = dialect.module
    number = draft.choice(
        "{ids}",
        f"{library}.floor({{ids}})",
        f"{library}.round({{ids}})",
        "({ids} * 0.5 + 3.0)",
        f"{library}.sqrt({library}.maximum({{ids}}, 0.0))",
    )
    whole = dialect.cast.format(value=number, dtype="int32")
    pool = (-7.5, -1.5, -1.0, -0.5, 0.0, 0.5, 0.99, 1.0, 1.5, 2.5, 3.0, 4.25, 9.0, 1e4, -1e4)
    return Rule("float32", pool, f"{dialect.clip}({whole}, 0, {wanted.rows - 1})")


Drawn = Callable[[Wanted], Rule]
OF_INTEGERS: tuple[Drawn, ...] = (remainder, limited, chosen, nested)
"""Computations of any integer."""
OF_ROWS: tuple[Drawn, ...] = (rows_themselves, rows_themselves, shifted, *OF_INTEGERS, *OF_INTEGERS)
OF_TEXTS: tuple[Drawn, ...] = (hashed_text, hashed_integers, known_text, known_integers)
OF_LIBRARIES: dict[str, tuple[Drawn, ...]] = {
    "tensorflow": (*OF_TEXTS, looked_up),
    "keras": OF_TEXTS,
    "flax": (),
    "jax": (),
}


def draw_rule(wanted: Wanted) -> Rule:
    """Draws a computation of ids, which are integers, texts or numbers."""
    numbers: tuple[Drawn, ...] = (whole_numbers,)
    if wanted.draft.dialect.module != "jnp":
        numbers = (whole_numbers, buckets, buckets, buckets)
    rules = (*OF_ROWS, stated, *OF_LIBRARIES[wanted.draft.dialect.name], *numbers)
    return _drawn(wanted, rules)


def draw_rule_of_bags(wanted: Wanted) -> Rule:
    """Draws a computation of ids that are integers or texts."""
    rules = (*OF_ROWS, stated, *OF_LIBRARIES[wanted.draft.dialect.name])
    return _drawn(wanted, rules)


def draw_rule_of_model(wanted: Wanted) -> Rule:
    """Draws a computation that takes any integer, and that the model does itself."""
    return _drawn(wanted, OF_INTEGERS)


def all_rules() -> set[str]:
    """Returns the names of all computations."""
    rules = [*OF_ROWS, stated, whole_numbers, buckets]
    rules += [rule for of_library in OF_LIBRARIES.values() for rule in of_library]
    return {rule.__name__ for rule in rules}


def _drawn(wanted: Wanted, rules: Sequence[Drawn]) -> Rule:
    draw = wanted.draft.choice(*rules)
    wanted.draft.forms.add(draw.__name__)
    return draw(wanted)
