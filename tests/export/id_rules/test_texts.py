"""Words of texts: what is found of them, and that services make the original's rows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from bundle.format.manifest import TextIds, TextStep
from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from export.graph.specs import FeatureSpec
from export.model.tracing import trace_towers
from export.recipe.schema import ExportJob
from export.verify.examples import Examples
from tests.export.lookups.gathering import HERE, Made, hold, make, recipe

TITLES = ["Star Wars (1977)", "The  of\tthe\u00a0star", "DON'T don't", "\u00c9t\u00e9 in love", "a", "\u65e5 b!", "*"]
TITLES += ["none of it", "in love", "a b a b a b a b a b", "<br />Of<br />Wars", "", " "]
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
LOWER, STRIP = TextStep(do="lower"), TextStep(do="replace_any", what=PUNCTUATION)
FOUND: list[tuple[str, tuple[TextStep, ...], dict[str, Any]]] = [
    ("bag", (LOWER, STRIP), {"split": "whitespace"}),
    ("bag", (LOWER,), {"split": "characters"}),
    ("bag", (), {"split": "whitespace", "ngrams": (1, 2)}),
    ("bag", (LOWER, STRIP), {"split": "whitespace", "length": 3}),
    ("bag", (STRIP,), {"split": "whitespace"}),
    ("bag", (LOWER,), {"split": "whitespace"}),
    ("sequence", (LOWER, STRIP), {"split": "whitespace"}),
    ("sequence", (LOWER, STRIP), {"split": "whitespace"}),
    ("sequence", (LOWER, STRIP), {"split": "whitespace"}),
    ("single", (LOWER, STRIP), {}),
]
"""What is found of the layers: kind, steps, and what else a text goes through."""


def job_of(function: str, shape: tuple[int, ...] = ()) -> ExportJob:
    code = {"factory": f"text_models.py:{function}", "inline_bytes_max": 4000, "table_threshold": 100}
    return recipe(function, {"title": {"dtype": "string", "shape": shape}}, code=code)


def made_of(function: str, directory: Path, shape: tuple[int, ...] = ()) -> Made:
    titles = load_tensorflow().constant(np.array(TITLES, object).reshape(-1, *shape))
    return make(job_of(function, shape), {"title": titles}, directory)


def hold_titles(made: Made, directory: Path) -> None:
    hold(made, directory, Examples(len(TITLES), {"title": Column(np.array(TITLES, object))}))


@pytest.fixture(scope="module", params=["build", "build_3"])
def titled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made_of(request.param, tmp_path_factory.mktemp("titled"))


def test_texts_become_bags_sequences_and_counts(titled: Made) -> None:
    found = []
    for spec in titled.traced.spec.features.values():
        assert isinstance(spec, FeatureSpec)
        assert isinstance(spec.rule, TextIds)
        how = spec.rule.model_dump(exclude={"kind", "steps", "ids"})
        found.append((spec.kind, spec.rule.steps, {name: each for name, each in how.items() if each is not None}))
        ordinal = spec.indicator is not None and spec.kind == "sequence"
        assert (spec.ordinal, spec.filler_row) == (ordinal, 0 if spec.kind == "sequence" and not ordinal else None)
    assert sorted(found, key=str) == sorted(FOUND, key=str)


def test_texts_give_the_original_s_numbers(titled: Made, tmp_path: Path) -> None:
    hold_titles(titled, tmp_path)
    texts = titled.examples().columns["title"].values.tolist()
    assert "" in texts
    assert any("star" in text for text in texts)


@pytest.mark.parametrize(
    ("function", "shape", "features"),
    [("build_handmade", (), 4), ("build_functional", (1,), 1), ("build_functional_3", (1,), 1)],
)
def test_words_of_other_models_give_the_original_s_numbers(
    function: str, shape: tuple[int, ...], features: int, tmp_path: Path
) -> None:
    made = made_of(function, tmp_path, shape)
    assert len(made.traced.spec.features) == features
    hold_titles(made, tmp_path)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("build_unmasked", r"\(text_models.py:\d+\).*let TextVectorization have an output_sequence_length"),
        ("build_unicode", r"\(text_models.py:\d+\).*change texts by tf.strings.lower"),
        ("build_separated", r"\(text_models.py:\d+\).*split at whitespace or into characters"),
        ("build_zeroed", r"\(text_models.py:\d+\).*where no word has the row 0"),
        ("build_unadapted", r"ids are looked up \(text_models.py:\d+\) in a vocabulary that is not there"),
    ],
)
def test_words_that_no_rule_tells_are_refused_with_the_line_and_the_cure(function: str, message: str) -> None:
    with pytest.raises(NotConvertible, match=message):
        trace_towers(job_of(function), HERE)
