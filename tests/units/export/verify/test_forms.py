"""Forms of a tower, run in parts by a network of a few lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import TowerForm, TowerInput, TowerOutput, TowerPart
from export.errors import VerificationFailed
from export.front_end.calls import Call
from export.front_end.specs import TowerSpec
from export.verify.forms import OpenForm, compare, largest_difference, run
from runtime.errors import InvalidInput
from runtime.tower import Tensor

Array = NDArray[Any]
SPEC = TowerSpec(
    name="ranking", role="ranking", call=Call(), paths={}, inputs=(), outputs=(),
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

    tensors = run(chain, {"user": users, "item": items}, 6, candidates)

    np.testing.assert_array_equal(tensors["score"], items + 2 * users)
    np.testing.assert_array_equal(tensors["doubled"], 2 * users)
    assert (context.batches, candidate.batches) == ([contexts], [6])


@pytest.mark.parametrize(
    ("expected", "difference", "limit", "within"),
    [
        (0.0, 0.9e-5, None, True),
        (0.0, 1.1e-5, None, False),
        (-1000.0, 1.0e-2, None, True),
        (-1000.0, 1.1e-2, None, False),
        (1000.0, 0.4, 0.5, True),
        (1000.0, 0.5, 0.5, True),
        (0.0, 0.6, 0.5, False),
        (0.0, np.nan, 0.5, False),
    ],
)
def test_difference_is_allowed_by_the_parity_rule_or_the_limit_of_the_recipe(
    expected: float, difference: float, limit: float | None, within: bool
) -> None:
    original = np.array([expected, expected])
    results = original + np.array([0, difference])
    if within:
        largest = largest_difference("here", results, original, limit, "the_limit")
        assert largest == pytest.approx(difference)
        return
    rule = "the_limit = 0.5" if limit else r"\|d\| <= 1e-05 \+ 1e-05 \* max\(\|y\|, median \|y\|\)"
    with pytest.raises(VerificationFailed, match=f"example 1 is .*1 of 2 values break {rule}"):
        largest_difference("here", results, original, limit, "the_limit")


def test_sum_of_large_terms_that_is_near_0_may_have_the_rounding_of_its_terms() -> None:
    """The magnitudes of the other examples show that of the terms, for each element apart."""
    original = np.array([[0.0, 0.0], [40.0, 0.1], [-50.0, -0.2], [60.0, 0.1]])
    rounding = np.zeros_like(original)
    rounding[0, 0] = 4e-4
    assert largest_difference("here", original + rounding, original, None, "the_limit") == 4e-4
    with pytest.raises(VerificationFailed, match=r"example 0, element \[1\], .* 1 of 8 values"):
        largest_difference("here", original + rounding[:, ::-1], original, None, "the_limit")
    with pytest.raises(VerificationFailed, match="1 of 2 values"):
        largest_difference("here", original[:1] + rounding[:1], original[:1], None, "the_limit")
    # So does the largest value of a vector.
    vector = original[1:2]
    assert largest_difference("here", vector + rounding[:1, ::-1], vector, None, "x") == (
        pytest.approx(4e-4)
    )


def test_first_example_alone_is_judged_by_the_magnitudes_of_all() -> None:
    original = np.array([0.0, 40.0, -50.0], np.float32)
    result = np.array([4e-4], np.float32)
    assert opened().check("score", result, original, None, np.arange(1)) == pytest.approx(4e-4)


def opened(
    precision: Any = "f32", limit: float | None = None, half: str = "", network: Any = None
) -> OpenForm:
    """Returns a form of a tower with one output, `score`."""
    form = TowerForm(kind="litert", precision=precision, path="x", max_abs_error={})
    entry = part("candidate", ["item"], network or Network("score", lambda item: item)).entry
    return OpenForm("here", replace(SPEC, half=half), entry, form, limit, network)


@pytest.mark.parametrize(
    ("form", "limit", "broken"),
    [
        (
            opened(),
            None,
            "|d| <= 1e-05 + 1e-05 * max(|y|, median |y|): its results would not be the model's",
        ),
        (
            opened("int8"),
            0.5,
            "towers.ranking.max_abs_error.int8 = 0.5: raise it, or leave 'int8' out of the tower's "
            "precisions",
        ),
        (
            opened("f32"),
            0.5,
            "towers.ranking.max_abs_error.f32 = 0.5: raise it, or where its tables are converted, "
            "choose a dtype that loses less",
        ),
        (
            opened(half="bfloat16"),
            None,
            "|d| <= 1e-05 + 1e-05 * max(|y|, median |y|): it computes in bfloat16, which LiteRT "
            "does not run and programs round differently: let the factory build the model under "
            "the policy 'float32' (its weights are float32 either way), or set "
            "towers.ranking.max_abs_error.f32 to what may differ",
        ),
        (
            opened("int8", half="bfloat16"),
            0.5,
            "towers.ranking.max_abs_error.int8 = 0.5: raise it, or leave 'int8' out of the tower's "
            "precisions",
        ),
    ],
)
def test_output_beyond_its_limit_is_told_with_the_cure(
    form: OpenForm, limit: float | None, broken: str
) -> None:
    original = np.array([1, 2, 3], np.float32)
    batch = np.arange(3)
    assert form.check("score", original, original, limit, batch) == 0
    with pytest.raises(VerificationFailed) as failure:
        form.check("score", original + np.array([0, 2, 1], np.float32), original, limit, batch)
    assert str(failure.value) == (
        "here, output 'score': example 1 is 4, the original model gives 2; 2 of 3 values break "
        f"{broken}"
    )


@pytest.mark.parametrize(
    ("form", "own_limit"),
    [
        (opened("f32", 0.5), None),
        (opened("f32", 0.5, half="bfloat16"), 0.5),
        (opened("int8", 0.5), 0.5),
        (opened("bf16", 0.5, half="bfloat16"), 0.5),
    ],
)
def test_limit_of_float32_is_for_converted_tables_unless_the_tower_computes_in_half(
    form: OpenForm, own_limit: float | None
) -> None:
    assert form.own_limit == own_limit


def test_worst_value_is_named_by_its_example_and_element() -> None:
    original = np.zeros((2, 2, 3))
    results = original.copy()
    results[0, 1, 2] = 3
    results[1, 0, 2] = -4
    message = (
        r"here: example 1, element \[0, 2\], is -4, the original model gives 0; 2 of 12 values"
    )
    with pytest.raises(VerificationFailed, match=message):
        largest_difference("here", results, original, 0.5, "the_limit")
    results[0, 0, 1] = np.nan
    with pytest.raises(VerificationFailed, match=r"example 0, element \[0, 1\], is nan, .*3 of 12"):
        largest_difference("here", results, original, 0.5, "the_limit")
    with pytest.raises(
        VerificationFailed, match=r"here: shape \(2, 2\); the original model gives \(2, 2, 3\)"
    ):
        largest_difference("here", results[..., 0], original, 0.5, "the_limit")
    assert largest_difference("here", results[:0], original[:0], 0.5, "the_limit") == 0


def test_compare_runs_all_examples_at_once_the_first_alone_and_half_in_another_order() -> None:
    def compute(item: Array) -> Array:
        return item + (np.float32(0.25) if len(item) == 1 else np.float32(0.125))

    network = Network("score", compute)
    inner = Network("inner", lambda item: item * 2)
    items = np.array([1, 2, 3], np.float32)
    original = {"score": items}
    form = opened(limit=0.5, network=network)
    chain = [replace(opened(network=inner), entry=part("candidate", ["item"], inner).entry), form]
    whole, errors = compare(chain, {"item": items}, original)
    assert network.batches == [3, 1, 2]
    assert whole["score"].tolist() == [1.125, 2.125, 3.125]
    assert errors == {"score": 0.25}

    with pytest.raises(VerificationFailed, match=r"example 0 is 1\.125, .*3 of 3 values break"):
        compare(chain, {"item": items}, original, own_rows=True)
    limited = opened("int8", 0.2, network=network)
    with pytest.raises(VerificationFailed, match=r"example 0 is 1\.25, .*1 of 1 values break"):
        compare([limited], {"item": items}, original, own_rows=True)


def test_part_that_cannot_compute_is_named_with_its_batch() -> None:
    def fail(user: Array) -> Array:
        raise InvalidInput(f"{len(user)} are too many")

    chain = [part("context", ["user"], Network("score", fail))]
    with pytest.raises(VerificationFailed, match="score, batch of 2: 2 are too many"):
        run(chain, {"user": np.arange(6, dtype=np.float32)}, 6, candidates=3)


@pytest.mark.parametrize(
    ("features", "suspects"),
    [
        (("age", "user_id"), "; it reads age, user_id"),
        (
            ("history@items", "history@values", "n@values"),
            "; suspect history@values: the tower reads these ids as numbers, too, and rows are "
            "found by a rule",
        ),
    ],
)
def test_output_that_differs_names_the_features_that_may_be_the_cause(
    features: tuple[str, ...], suspects: str
) -> None:
    inputs = tuple(
        TowerInput(name=f"i{n}", feature=name, shape=(None,), dtype="float32")
        for n, name in enumerate(features)
    )
    form = replace(opened(), spec=replace(SPEC, inputs=inputs))
    with pytest.raises(VerificationFailed) as problem:
        form.check("score", np.array([1.0]), np.array([2.0]), None, np.arange(1))
    assert str(problem.value).endswith(f"its results would not be the model's{suspects}")
