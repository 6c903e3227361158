"""Random models of TensorFlow, Keras 3, Flax and JAX: what is served equals what their frameworks
give, and together they use everything that the format of bundles can say of a feature.

`python -m benchmarks.soak.random_models` tries any number of other seeds.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import pytest

from export.graphs.loading import load_tensorflow
from tests.differential.random_models.coverage import options_of_format
from tests.differential.random_models.models import all_forms, draw_model
from tests.differential.random_models.trials import trial

# Before pytest exempts what is imported from garbage collection, which takes a sixth of the time.
load_tensorflow()
for library in ("keras", "keras_rs", "flax.linen", "orbax.checkpoint"):
    pytest.importorskip(library)

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't:DeprecationWarning"  # Keras
)
FIRST = [2, 3, 9, 314]
"""Seeds of models that are not known to differ; `known` in tests/differential/random_models says
how.
"""
OTHERS = [
    *(12, 13, 15, 19, 24, 26, 31, 32, 36, 38, 43, 48, 49, 53, 94, 147, 223, 283, 357),
]
"""With the first ones, these use every option of the format and draw every form."""
NIGHTLY = [
    *(5, 7, 10, 21, 28, 35, 40, 42, 44, 47, 80, 84, 91, 100, 107, 130, 188, 211, 228, 310, 323, 351)
]
OF_OTHERS = {
    "table int8": "stated by recipes alone",
    "ids.kind keyed": "tables of dynamic keys",
    "ids.keys": "the same",
    "unknown.rule refuse": "stated by recipes alone",
    "dtype string": "texts that a tower reads itself",
    "ids.padding": "words that are padded before they become ids: see test_ids_of_models.py",
}
"""What no drawn model makes of a feature, and why."""
_drawn: dict[int, Set[str]] = {}
"""The options of the bundles of seeds that were tried."""


def options_of(seed: int, directory: Path) -> Set[str]:
    """Tries a seed once, and returns the options that its bundle uses."""
    if seed not in _drawn:
        outcome = trial(seed, directory)
        # To reject one would be a loss of what docs/reference/models.md promises.
        assert not outcome.rejection
        _drawn[seed] = outcome.options
    return _drawn[seed]


@pytest.mark.parametrize(
    "seed",
    [
        *FIRST,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in OTHERS),
        *(pytest.param(seed, marks=pytest.mark.nightly) for seed in NIGHTLY),
    ],
)
def test_random_model_as_served_gives_the_results_of_its_framework(
    seed: int, tmp_path: Path
) -> None:
    options_of(seed, tmp_path)


def test_keras_variable_of_half_precision_that_a_call_casts_as_a_whole_is_rejected(
    tmp_path: Path,
) -> None:
    """Keras casts a variable of another dtype before its rows are taken."""
    assert "reads no table" in trial(52, tmp_path).rejection


@pytest.mark.slow
def test_every_option_of_the_format_was_drawn(tmp_path: Path) -> None:
    drawn: set[str] = set()
    for seed in (*FIRST, *OTHERS):
        directory = tmp_path / str(seed)
        directory.mkdir()
        drawn |= options_of(seed, directory)
    assert options_of_format() - drawn - OF_OTHERS.keys() == set()


def test_every_form_of_lookup_and_computation_was_drawn() -> None:
    drawn = set().union(*(draw_model(seed).forms for seed in (*FIRST, *OTHERS)))
    assert all_forms() - drawn == set()
