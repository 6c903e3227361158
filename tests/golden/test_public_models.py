"""Rankers in the shape of public code: what is served, over both transports, equals what the trained model gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rowcast_client import Client

from bundle.format.manifest import EmbeddedFeature
from export.frameworks.loading import load_tensorflow
from tests.e2e.process import Process
from tests.export.exporting import export
from tests.golden import public_models
from tests.golden.rankers import as_sent, write_recipe

tf = load_tensorflow()
N = 24
HEADS = {"mmoe": ("finish", "like"), **dict.fromkeys(("cross", "recurrent", "wide", "watched"), ("score",))}
RULES = {
    "mmoe": {"gender": "vocabulary", "occupation": "vocabulary", "user": "hash", "item": "computed"},
    "cross": {"a": "computed", "b": "computed", "c": "computed", "d": "computed"},
    "recurrent": {"last": "identity", "item": "identity"},
    "watched": {"user": "identity", "watched@items": "identity", "country": "vocabulary", "item": "identity"},
    "wide": {"hour*city*item": "crossed", "city*item": "joined", "item@prefixed": "joined", "city@words": "vocabulary"},
}


def inputs(model: str) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(7)
    if model == "recurrent":
        return {"last": random.integers(0, 2000, (N, 6)), "item": random.integers(0, 2000, N)}
    if model == "watched":
        watched = random.integers(1, 4000, (N, 5)) * (np.arange(5) < random.integers(1, 6, (N, 1)))
        watched[0, 0] = -7  # to Keras 3, the last but six
        ids = {"user": random.integers(-3000, 3000, N), "item": random.integers(-4000, 4000, N)}
        countries = random.choice(["de", "fr", "pe", "??"], N).astype(object)
        return {**ids, "watched": watched, "country": countries}
    if model == "wide":
        cities = np.array(["o1", "o19", "", "Z\u00fcrich"], object)[random.integers(0, 4, N)]
        return {
            "city": cities,
            "item": random.integers(-(1 << 60), 1 << 60, N),
            "hour": random.uniform(0, 24, N).astype(np.float32),
        }
    if model == "cross":
        whole = {name: random.integers(-(1 << 60), 1 << 60, N) for name in "abcd"}
        return {**whole, "n": random.normal(size=N).astype(np.float32)}
    return {
        "gender": random.choice(["m", "f", "?"], N).astype(object),
        "occupation": random.choice(["o1", "o19", "none"], N).astype(object),
        "user": random.integers(0, 10**9, N),
        "item": random.integers(0, 6000, N),
        "price": random.uniform(0, 90, N).astype(np.float32),
    }


@pytest.mark.parametrize("name", list(HEADS))
def test_rankings_served_over_both_transports_equal_the_trained_model(name: str, tmp_path: Path) -> None:
    tf.random.set_seed(3)
    model, sent, heads = getattr(public_models, f"build_{name}")(), inputs(name), HEADS[name]
    trained = model({each: tf.constant(value) for each, value in sent.items()})
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt" / "model"))
    lines = []
    for each, value in sent.items():
        dtype = {"O": "string", "i": "int64", "f": "float32"}[value.dtype.kind]
        shape = list(value.shape[1:])
        lines += [f'inputs.{each} = {{ dtype = "{dtype}", shape = {shape} }}', f'features.{each}.role = "candidate"']
    published = export(write_recipe(tmp_path, public_models, name, lines, heads))
    by_tensorflow = name == "recurrent"
    page = published.page
    assert {form.kind for form in page.towers["ranking"].forms} == {"saved_model"} | (
        set() if by_tensorflow else {"litert"}
    )
    told = [note for note in published.notes if "is not compiled for LiteRT" in note and "TensorList" in note]
    assert bool(told) == by_tensorflow
    read = {name: each.ids.kind for name, each in page.features.items() if isinstance(each, EmbeddedFeature)}
    assert read == RULES[name]
    service = Process(tmp_path / "bundles")
    try:
        service.event("version_available")
        for transport in ("http", "grpc"):
            with Client(f"{transport}://127.0.0.1:{service.ports[transport]}") as client:
                features = {each: value.tolist() for each, value in sent.items()}
                found = client.rank({}, features=features, heads=heads)[0]
                for head in heads:
                    scores = [item.heads[head] for item in as_sent(found)]
                    np.testing.assert_allclose(scores, trained[head].numpy().reshape(-1), rtol=1e-5, atol=1e-5)
        assert ("libtensorflow" in Path(f"/proc/{service.process.pid}/maps").read_text()) == by_tensorflow
    finally:
        service.kill()
