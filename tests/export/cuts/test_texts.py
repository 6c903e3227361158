"""Words of texts: what is found of them, and that services make the original's rows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features import Column
from bundle.manifest import TextIds, TextStep
from export.checks.examples import Examples
from export.frameworks import load_tensorflow
from export.towers.descriptions import FeatureSpec
from tests.export.cuts.gathering import Made, hold, make, recipe

TITLES = ["Star Wars (1977)", "The  of\tthe\u00a0star", "DON'T don't", "\u00c9t\u00e9 in love", "a", "\u65e5 b!", "*"]
TITLES += ["none of it", "in love", "a b a b a b a b a b", "<br />Of<br />Wars", "", " "]
INPUTS: dict[str, Any] = {"title": {"dtype": "string"}}
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


def made_of(function: str, directory: Path) -> Made:
    job = recipe(function, INPUTS, code={"factory": f"text_models.py:{function}"})
    return make(job, {"title": load_tensorflow().constant(TITLES)}, directory)


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


def test_made_examples_hold_known_words(titled: Made) -> None:
    texts = titled.examples().columns["title"].values.tolist()
    assert "" in texts
    assert any("star" in text for text in texts)


def test_words_by_tensorflow_s_own_operations_give_the_original_s_numbers(tmp_path: Path) -> None:
    made = made_of("build_handmade", tmp_path)
    assert len(made.traced.spec.features) == 4
    hold_titles(made, tmp_path)
