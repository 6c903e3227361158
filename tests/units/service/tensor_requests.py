"""Random requests to the small bundle that protocols of named tensors can express, their forms in
the native calls, and the responses of these as named tensors.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs import tensorflow_serving_pb2 as tensorflow_pb
from tests.bundles.small import GENRE_NAMES, USERS, candidate_ids
from tests.units.service.cases import columns, i32

SIGNATURES = {"query": "embed", "candidate": "embed", "ranking": "rank", "retrieve": "retrieve"}
"""The native call that computes each signature of the bundle."""
HEADS = ("watch", "rating")
"""The outputs of the ranking tower beside the score."""
ROWS_MAX = 4
K_MAX = 9
LIST_MAX = 4
_REQUIRED = {
    "query": ("user",),
    "candidate": ("movie", "genres", "year"),
    "ranking": ("user", "movie", "genres", "year"),
    "retrieve": ("user",),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "query": ("history", "city", "hour"),
    "candidate": (),
    "ranking": ("liked", "recent", "hour", "mood"),
    "retrieve": ("history", "city", "hour"),
}
_CANDIDATE = ("movie", "genres", "year")
_LISTS = ("history", "liked", "recent", "genres")
_TEXTS = ("city", "genres")
_NUMBERS = ("hour", "mood", "year")
_MOVIES = candidate_ids("int64", 40).tolist()
_UNKNOWN = 5
"""An id that no movie has."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TensorRequest:
    """A request of n rows.

    Attributes:
      signature: A key of SIGNATURES.
      rows: The value of each feature, or its list of values, for each row. All rows have the same
        features.
      k: The number of neighbors of a retrieval.
    """

    signature: str
    rows: Sequence[Mapping[str, Any]]
    k: int

    @property
    def call(self) -> str:
        """Returns the name of the native call."""
        return SIGNATURES[self.signature]

    def arrays(self) -> Arrays:
        """Returns the inputs as named tensors; a list of any length as values and row splits."""
        arrays: Arrays = {}
        for name in self.rows[0]:
            values = [row[name] for row in self.rows]
            if name in _LISTS:
                arrays[f"{name}_1"] = np.cumsum([0, *map(len, values)]).astype(np.int64)
                values = [value for row in values for value in row]
            arrays[name] = np.array(values, _dtype(name))
        if self.call == "retrieve":
            arrays["k"] = np.array([self.k])
        return arrays

    def json(self) -> dict[str, Any]:
        """Returns the body of the native call."""
        if self.call == "embed":
            return {"tower": self.signature, "requests": [{"features": row} for row in self.rows]}
        if self.call == "retrieve":
            return {"k": self.k, "requests": [{"context": row} for row in self.rows]}
        requests = [
            {
                "context": _without(row, _CANDIDATE),
                "candidate_features": {name: [row[name]] for name in _CANDIDATE},
            }
            for row in self.rows
        ]
        return {"heads": list(HEADS), "requests": requests}

    def message(self, model: str) -> Any:
        """Returns the message of the native call."""
        spec = pb.ModelSpec(name=model)
        if self.call == "embed":
            return pb.EmbedRequest(model=spec, tower=self.signature, features=columns(self.rows))
        if self.call == "retrieve":
            return pb.RetrieveRequest(model=spec, k=self.k, context=columns(self.rows))
        return pb.RankRequest(
            model=spec,
            heads=HEADS,
            context=columns([_without(row, _CANDIDATE) for row in self.rows]),
            candidate_features=columns([_only(row, _CANDIDATE) for row in self.rows]),
            offsets=i32(*range(len(self.rows) + 1)),
        )

    def arrays_of_json(self, body: Mapping[str, Any]) -> Arrays:
        """Returns the response of the native call over HTTP as the outputs of the signature."""
        results = body["results"]
        if self.call == "embed":
            vectors = [result["vector"] for result in results]
            return {"vector": np.array(vectors, np.float32)}
        if self.call == "retrieve":
            ids = [result["ids"] for result in results]
            scores = [result["scores"] for result in results]
            return _neighbors(ids, scores)
        heads = {name: [result["heads"][name][0] for result in results] for name in HEADS}
        scores = [result["scores"][0] for result in results]
        outputs = {"score": scores, **heads}
        return {name: np.array(values, np.float32) for name, values in outputs.items()}

    def arrays_of_message(self, response: bytes) -> Arrays:
        """Returns the message of the native call's response as the outputs of the signature."""
        if self.call == "embed":
            embedded = pb.EmbedResponse.FromString(response)
            return {"vector": _floats(embedded.vectors).reshape(-1, embedded.dim)}
        if self.call == "retrieve":
            retrieved = pb.RetrieveResponse.FromString(response)
            rows = list(pairwise(np.frombuffer(retrieved.offsets, "<i4").tolist()))
            ids = np.frombuffer(retrieved.ids.int64s, "<i8")
            scores = _floats(retrieved.scores)
            return _neighbors(
                [ids[first:end].tolist() for first, end in rows],
                [scores[first:end].tolist() for first, end in rows],
            )
        ranked = pb.RankResponse.FromString(response)
        heads = {name: _floats(ranked.heads[name]) for name in HEADS}
        return {"score": _floats(ranked.scores), **heads}


def tensor_message(array: NDArray[Any]) -> tensorflow_pb.TensorProto:
    """Returns an input as TensorFlow's message, its elements in the field of their type."""
    sizes = [tensorflow_pb.TensorShapeProto.Dim(size=size) for size in array.shape]
    shape = tensorflow_pb.TensorShapeProto(dim=sizes)
    values = array.reshape(-1).tolist()
    if array.dtype == object:
        texts = [text.encode() for text in values]
        return tensorflow_pb.TensorProto(
            dtype=tensorflow_pb.DT_STRING, tensor_shape=shape, string_val=texts
        )
    if array.dtype == np.float32:
        return tensorflow_pb.TensorProto(
            dtype=tensorflow_pb.DT_FLOAT, tensor_shape=shape, float_val=values
        )
    return tensorflow_pb.TensorProto(
        dtype=tensorflow_pb.DT_INT64, tensor_shape=shape, int64_val=values
    )


def random_request(seed: int) -> TensorRequest:
    """Returns a request of a random signature, with random features, rows and values."""
    draw = random.Random(seed)
    signature = draw.choice(list(SIGNATURES))
    optional = [name for name in _OPTIONAL[signature] if draw.random() < 0.6]
    names = [*_REQUIRED[signature], *optional]
    count = draw.randint(1, ROWS_MAX)
    rows = [{name: _random_value(draw, name) for name in names} for _ in range(count)]
    return TensorRequest(signature, rows, draw.randint(1, K_MAX))


def assert_same(expected: Arrays, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Compares outputs bit for bit."""
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        assert arrays[name].shape == array.shape, name
        assert arrays[name].tolist() == array.tolist(), name


def _random_value(draw: random.Random, name: str) -> Any:
    match name:
        case "user":
            return draw.randint(-1, USERS + 5)
        case "movie":
            return draw.choice(_MOVIES)
        case "city":
            return draw.choice(["oslo", "bern", "", "são paulo"])
        case "hour" | "year":
            return _random_number(draw)
        case "mood":
            return [_random_number(draw), _random_number(draw)]
        case "genres":
            return [draw.choice([*GENRE_NAMES, "opera"]) for _ in range(draw.randint(0, LIST_MAX))]
    return [draw.choice([*_MOVIES, _UNKNOWN]) for _ in range(draw.randint(0, LIST_MAX))]


def _random_number(draw: random.Random) -> float:
    return float(np.float32(draw.uniform(-2, 2)))


def _dtype(name: str) -> Any:
    if name in _TEXTS:
        return object
    if name in _NUMBERS:
        return np.float32
    return np.int64


def _neighbors(ids: Sequence[Any], scores: Sequence[Any]) -> Arrays:
    return {
        "ids": np.array(ids, np.int64),
        "scores": np.array(scores, np.float32),
        "counts": np.array([len(row) for row in ids]),
    }


def _floats(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4")


def _only(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _without(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}
