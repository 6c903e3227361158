"""Rankers as users write them: what both transports serve equals what the trained model gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from rowcast_client import RowcastError

from export.frameworks.loading import load_tensorflow
from tests.export.exporting import export
from tests.golden import field_models, inline_models, public_models
from tests.golden.rankers import assert_ranked, serving, write_recipe

tf = load_tensorflow()
N = 24
Sent = dict[str, Any]


@dataclass(frozen=True)
class Ranker:
    """A model, and what is expected of its bundle.

    Attributes:
      models, factory: where it is built.
      inputs: the recipe's entry of each input.
      sent: makes what a caller sends of candidates.
      tables: how many are read by the service; others stay inside the tower.
      by_tensorflow: what its tower computes is beyond LiteRT.
      refused: an input, what may not be sent of it, and what the error says.
    """

    models: ModuleType
    factory: str
    inputs: dict[str, str]
    sent: Callable[[np.random.Generator], Sent]
    tables: int = 0
    heads: tuple[str, ...] = ("score",)
    by_tensorflow: bool = False
    refused: tuple[str, Any, str] | None = None


def entry(dtype: str, shape: tuple[int, ...] = (), **more: Any) -> str:
    told = {"dtype": dtype, **more} | ({"shape": list(shape)} if shape else {})
    return "{ " + ", ".join(f"{name} = {value!r}" for name, value in told.items()) + " }"


def bags(random: np.random.Generator, low: int, high: int, longest: int = 5, last: int = 3) -> list[list[int]]:
    """The first is empty; the last has `last` ids: `embedding_lookup_sparse` itself drops empty ones there."""
    sizes = [0, *random.integers(0, longest + 1, N - 2).tolist(), last]
    return [random.integers(low, high, size).tolist() for size in sizes]


def texts(random: np.random.Generator, *words: str) -> list[str]:
    found: list[str] = random.choice(words, N).tolist()
    return found


def text_bags(random: np.random.Generator, *words: str) -> list[list[str]]:
    return [random.choice(words, len(bag)).tolist() for bag in bags(random, 0, 2)]


def field_ids(random: np.random.Generator) -> Any:
    return random.integers(0, field_models.SIZES, (N, field_models.FIELDS))


def numbers_and_ids(random: np.random.Generator) -> Sent:
    numbers = random.lognormal(0, 2, (N, field_models.NUMBERS)) * random.choice([1, 1, 1, -1], (N, 1))
    ids = field_ids(random) + random.choice([0, 0.5], (N, field_models.FIELDS))
    return {"row": np.concatenate([numbers, ids], 1).astype(np.float32).tolist()}


def watched(random: np.random.Generator) -> Sent:
    found = random.integers(1, 4000, (N, 5)) * (np.arange(5) < random.integers(1, 6, (N, 1)))
    found[0, 0] = -7  # to Keras 3, the last but six
    return {
        "user": random.integers(-3000, 3000, N).tolist(),
        "item": random.integers(-4000, 4000, N).tolist(),
        "watched": found.tolist(),
        "country": texts(random, "de", "fr", "pe", "??"),
    }


def weighted_bags(random: np.random.Generator, low: int) -> list[dict[str, Any]]:
    ids = bags(random, low, 1 << 40, last=0)
    ids[3] = [low, 7]
    return [{"ids": each, "weights": random.choice([0.0, 0.5, 2.0], len(each)).tolist()} for each in ids]


WORDS_AND_WEIGHTS = {
    "words": entry("int64", kind="sparse"),
    "weights": entry("float32", kind="sparse", weights_for="words"),
}
FAR = 1 << 60
BEYOND = "looks up itself may lie beyond its tables"
RANKERS = {
    "fm": Ranker(field_models, "FM", {"ids": entry("int64", (26,))}, lambda r: {"ids": field_ids(r).tolist()}, 2),
    "deepfm": Ranker(field_models, "DeepFM", {"row": entry("float32", (39,))}, numbers_and_ids, 2),
    "mmoe": Ranker(
        public_models,
        "MMoE",
        {"gender": entry("string"), "occupation": entry("string"), "user": entry("int64"), "item": entry("int64")}
        | {"price": entry("float32")},
        lambda r: {
            "gender": texts(r, "m", "f", "?"),
            "occupation": texts(r, "o1", "o19", "none"),
            "user": r.integers(0, 10**9, N).tolist(),
            "item": r.integers(0, 6000, N).tolist(),
            "price": r.uniform(0, 90, N).tolist(),
        },
        4,
        ("finish", "like"),
    ),
    "cross": Ranker(
        public_models,
        "Cross",
        {name: entry("int64") for name in "abcd"} | {"n": entry("float32")},
        lambda r: {name: r.integers(-FAR, FAR, N).tolist() for name in "abcd"} | {"n": r.normal(size=N).tolist()},
        1,
    ),
    "recurrent": Ranker(
        public_models,
        "Recurrent",
        {"last": entry("int64", (6,)), "item": entry("int64")},
        lambda r: {"last": r.integers(0, 2000, (N, 6)).tolist(), "item": r.integers(0, 2000, N).tolist()},
        1,
        by_tensorflow=True,
    ),
    "wide": Ranker(
        public_models,
        "Wide",
        {"city": entry("string"), "item": entry("int64"), "hour": entry("float32")},
        lambda r: {
            "city": texts(r, "o1", "o19", "", "Zürich"),
            "item": r.integers(-FAR, FAR, N).tolist(),
            "hour": r.uniform(0, 24, N).tolist(),
        },
        4,
    ),
    "watched": Ranker(
        public_models,
        "watched",
        {"user": entry("int64"), "watched": entry("int64", (5,)), "country": entry("string"), "item": entry("int64")},
        watched,
        3,
    ),
    "ragged": Ranker(
        inline_models,
        "Ragged",
        {"tags": entry("int64", kind="ragged"), "words": entry("int32", kind="ragged", length_max=5)},
        lambda r: {"tags": bags(r, 0, 1 << 40), "words": bags(r, 0, 1 << 30, last=0)},
        refused=("words", [[1] * 6] * N, "example 0 has 6 values; a tower takes 5 at most"),
    ),
    "sparse": Ranker(
        inline_models,
        "Sparse",
        WORDS_AND_WEIGHTS | {"age": entry("float32")},
        lambda r: {"words": weighted_bags(r, -1 << 12), "age": r.uniform(0, 9, N).tolist()},
        by_tensorflow=True,
    ),
    "weighted": Ranker(
        inline_models,
        "Weighted",
        {"words": entry("int64", kind="ragged"), "tags": entry("int64", (6,))},
        lambda r: {"words": bags(r, 0, 5000, last=2), "tags": r.integers(0, 300, (N, 6)).tolist()},
        by_tensorflow=True,
        refused=("tags", [[9999] * 6] * N, BEYOND),
    ),
    "texts": Ranker(
        inline_models,
        "Texts",
        {"colours": entry("string", kind="ragged"), "words": entry("string", kind="sparse"), "city": entry("string")},
        lambda r: {
            "colours": text_bags(r, "Red", "GREEN", "blue", "grey", "Ö"),
            "words": text_bags(r, "a!", "b c", "a", "..", ""),
            "city": texts(r, "Berlin", "Bern", "Rome"),
        },
        by_tensorflow=True,
    ),
    "columns": Ranker(
        inline_models,
        "Columns",
        WORDS_AND_WEIGHTS | {"recent": entry("int64", (4,)), "item": entry("int64")},
        lambda r: {
            "words": weighted_bags(r, 0),
            "recent": r.integers(-1, 900, (N, 4)).tolist(),
            "item": r.integers(0, 1 << 20, N).tolist(),
        },
        by_tensorflow=True,
    ),
    "padded": Ranker(
        inline_models,
        "Padded",
        {"tags": entry("int64", kind="ragged"), "recent": entry("int64", (4,))},
        lambda r: {"tags": bags(r, 0, 5000), "recent": r.integers(-2, 1 << 40, (N, 4)).tolist()},
        refused=("tags", [[9999]] * N, BEYOND),
    ),
}


def tensors(ranker: Ranker, sent: Sent) -> dict[str, Any]:
    """What a request is to the model itself."""
    if "weights" in ranker.inputs:
        parts = {name: [each[name] for each in sent["words"]] for name in ("ids", "weights")}
        sent = {**sent, "words": parts["ids"], "weights": parts["weights"]}
    made = {}
    for name, told in ranker.inputs.items():
        make = tf.ragged.constant if "kind" in told else tf.constant
        made[name] = make(sent[name], tf.as_dtype(told.split("'")[1]))
        made[name] = made[name].to_sparse() if "sparse" in told else made[name]
    return made


def train(ranker: Ranker, sent: Sent, directory: Path) -> dict[str, Any]:
    """Saves a model; returns the scores of its heads."""
    tf.random.set_seed(5)
    model = getattr(ranker.models, ranker.factory)()
    scores = model(tensors(ranker, sent))
    tf.train.Checkpoint(model=model).write(str(directory / "ckpt" / "model"))
    return {head: scores[head].numpy() for head in ranker.heads}


def recipe_of(ranker: Ranker, directory: Path, **roles: str) -> Path:
    lines = [f"inputs.{each} = {told}" for each, told in ranker.inputs.items()]
    sent = [each for each in ranker.inputs if "weights_for" not in ranker.inputs[each]]
    lines += [f'features.{each}.role = "{roles.get(each, "candidate")}"' for each in sent]
    return write_recipe(directory, ranker.models, ranker.factory, lines, ranker.heads)


@pytest.mark.parametrize("ranker", RANKERS.values(), ids=list(RANKERS))
def test_scores_over_both_transports_equal_the_trained_model(ranker: Ranker, tmp_path: Path) -> None:
    sent = ranker.sent(np.random.default_rng(7))
    trained = train(ranker, sent, tmp_path)
    page = export(recipe_of(ranker, tmp_path)).page
    assert len(page.tables) == ranker.tables
    kinds = {"saved_model"} if ranker.by_tensorflow else {"saved_model", "litert"}
    assert {form.kind for form in page.towers["ranking"].forms} == kinds
    with serving(tmp_path / "bundles", by_tensorflow=ranker.by_tensorflow) as clients:
        for client in clients:
            assert_ranked(client, trained, sent, {})
            if ranker.refused is not None:
                name, value, told = ranker.refused
                with pytest.raises(RowcastError, match=told) as refused:
                    client.rank({}, features={**sent, name: value})
                assert refused.value.code == "INVALID_ARGUMENT"


def test_bag_of_a_context_beside_bags_of_candidates_equals_the_trained_model(tmp_path: Path) -> None:
    ranker, tags = RANKERS["ragged"], [3, 1 << 33, 3, 77]
    words = ranker.sent(np.random.default_rng(7))["words"]
    trained = train(ranker, {"words": words, "tags": [tags] * N}, tmp_path)
    export(recipe_of(ranker, tmp_path, tags="context"))
    with serving(tmp_path / "bundles") as clients:
        for client in clients:
            assert_ranked(client, trained, {"words": words}, {"tags": tags})
