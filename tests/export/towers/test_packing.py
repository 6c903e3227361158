from __future__ import annotations

import numpy as np
import pytest

from export.front_end.interface import TracedTower
from export.towers.division import split_tower
from export.towers.packing import pack
from tests.export.ranking_parts import AGE, FEATURES, made_values, run, run_parts, traced
from tests.export.traced_models import IDS

NAMES = [f"c{number}" for number in range(90)]


@pytest.fixture(scope="module")
def wide() -> TracedTower:
    return traced("build_wide", ["score"], {**dict.fromkeys(NAMES, IDS), "item": IDS, "age": AGE})


def test_pack_of_many_features_takes_one_tensor_in_the_order_that_joins_them(
    wide: TracedTower,
) -> None:
    packed = pack(wide)
    (only,) = packed.spec.inputs
    assert (only.name, only.shape) == ("packed_float32", (None, 183))
    assert only.features[:91] == (*reversed(NAMES), "age")
    joins = [each for each in packed.function.graph.get_operations() if each.type == "ConcatV2"]
    # The user's vector is joined with the item's; the long join is gone.
    assert [len(join.inputs) for join in joins] == [3]
    values = made_values(wide, 7)
    np.testing.assert_allclose(
        run(packed, values, 7)["score"], run(wide, values, 7)["score"], rtol=1e-6, atol=1e-6
    )


def test_pack_of_a_part_of_many_features_computes_the_part(wide: TracedTower) -> None:
    roles = {name: "candidate" if name == "item" else "context" for name in [*NAMES, "item", "age"]}
    parts = [pack(part) for part in split_tower(wide, roles).parts]  # type: ignore[arg-type]
    assert [[each.name for each in part.spec.inputs] for part in parts] == [
        ["packed_float32"],
        ["item", "context_0"],
    ]
    values = made_values(wide, 8)
    for name in [*NAMES, "age"]:
        values[name] = values[name][::4].repeat(4, axis=0)
    expected = run(wide, values, 8)["score"]
    np.testing.assert_allclose(
        run_parts(parts, values, 8, 4)["score"], expected, rtol=1e-5, atol=1e-5
    )


def test_pack_of_vectors_above_each_other_takes_them_as_one() -> None:
    names = [f"s{number}" for number in range(12)]
    tower = traced("build_stack", ["score"], {**dict.fromkeys(names, IDS), "age": AGE})
    packed = pack(tower)
    assert {*packed.spec.inputs[0].features} == {*names, "age"}
    values = made_values(tower, 7)
    np.testing.assert_allclose(
        run(packed, values, 7)["score"], run(tower, values, 7)["score"], rtol=1e-5, atol=1e-5
    )


def test_pack_of_few_features_leaves_them_separate() -> None:
    tower = traced("build_together", ["click", "like"], FEATURES)
    assert pack(tower).spec == tower.spec
