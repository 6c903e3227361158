"""Forms of a tower, run in parts by a network of a few lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import TowerForm, TowerInput, TowerOutput, TowerPart
from export.errors import VerificationFailed
from export.front_end.specs import TowerSpec
from export.verify.forms import OpenForm, largest_difference, run
from runtime.tower import Tensor

Array = NDArray[Any]
SPEC = TowerSpec(
    name="ranking", role="ranking", call="", call_inputs=(), keys={}, inputs=(), outputs=(),
    result="score",
)  # fmt: skip


@dataclass
class Network:
    """Computes one output, and notes how many examples it is given at a time."""

    output: str
    compute: Callable[..., Array]
    batches: list[int] = field(default_factory=list)
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        result = self.compute(**inputs)
        self.batches.append(len(result))
        return {self.output: result}

    def buffers(self, _n: int) -> Mapping[str, Array]:
        return {}

    def prepare_thread(self) -> None:
        """Needs nothing of its own for a thread."""

    def release_thread(self) -> None:
        """Has nothing to leave."""


def part(per: Any, takes: list[str], network: Network) -> OpenForm:
    inputs = tuple(
        TowerInput(name=name, feature=name, dtype="float32", shape=(None,)) for name in takes
    )
    outputs = (TowerOutput(name=network.output, dtype="float32", shape=(None,)),)
    form = TowerForm(kind="saved_model", precision="f32", path="x", max_abs_error={})
    entry = TowerPart(name=network.output, per=per, inputs=inputs, outputs=outputs, forms=(form,))
    return OpenForm(network.output, SPEC, entry, form, None, network)


@pytest.mark.parametrize(("candidates", "contexts"), [(1, 6), (3, 2)])
def test_part_of_a_context_runs_once_for_the_candidates_that_share_it(
    candidates: int, contexts: int
) -> None:
    context = Network("doubled", lambda user: 2 * user)
    candidate = Network("score", lambda item, doubled: item + doubled)
    chain = [
        part("context", ["user"], context),
        part("candidate", ["item", "doubled"], candidate),
    ]
    users = np.repeat(np.arange(contexts, dtype=np.float32), candidates)
    items = np.arange(6, dtype=np.float32) * 100

    made = run(chain, {"user": users, "item": items}, 6, candidates)

    np.testing.assert_array_equal(made["score"], items + 2 * users)
    np.testing.assert_array_equal(made["doubled"], 2 * users)
    assert (context.batches, candidate.batches) == ([contexts], [6])


@pytest.mark.parametrize(
    ("expected", "difference", "limit", "within"),
    [
        (0.0, 0.9e-5, None, True),
        (0.0, 1.1e-5, None, False),
        (-1000.0, 1.0e-2, None, True),
        (-1000.0, 1.1e-2, None, False),
        (1000.0, 0.4, 0.5, True),
        (0.0, 0.6, 0.5, False),
        (0.0, np.nan, 0.5, False),
    ],
)
def test_difference_is_allowed_by_the_parity_rule_or_the_limit_of_the_recipe(
    expected: float, difference: float, limit: float | None, within: bool
) -> None:
    original = np.array([5.0, expected])
    found = original + np.array([0, difference])
    if within:
        largest = largest_difference("here", found, original, limit, "the_limit")
        assert largest == pytest.approx(difference)
        return
    rule = "the_limit = 0.5" if limit else r"\|d\| <= 1e-05 \+ 1e-05 \* \|y\|"
    with pytest.raises(VerificationFailed, match=f"example 1 is .*1 of 2 values break {rule}"):
        largest_difference("here", found, original, limit, "the_limit")
