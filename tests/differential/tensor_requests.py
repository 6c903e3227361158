"""Random requests to the small bundle that protocols of named tensors can express, their forms in
the native calls, and the responses of these as named tensors.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensors.stubs import tensorflow_serving_pb2 as tensorflow_pb
from tensors.tensor_protos import fill_tensor
from tests.bundles.small import GENRE_NAMES, USERS, candidate_ids
from tests.units.service.cases import Case

SIGNATURES = {"query": "embed", "candidate": "embed", "ranking": "rank", "retrieve": "retrieve"}
"""The native call that computes each signature of the bundle."""
HEADS = ("watch", "rating")
"""The outputs of the ranking tower beside the score."""
_CANDIDATE = ("movie", "genres", "year")
_REQUIRED = {
    "query": ("user",),
    "candidate": _CANDIDATE,
    "ranking": ("user", *_CANDIDATE),
    "retrieve": ("user",),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "query": ("history", "city", "hour"),
    "candidate": (),
    "ranking": ("liked", "recent", "hour", "mood"),
    "retrieve": ("history", "city", "hour"),
}
_LISTS = ("history", "liked", "recent", "genres")
_DTYPES = {"city": object, "genres": object} | dict.fromkeys(("hour", "mood", "year"), np.float32)
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
            arrays[name] = np.array(values, _DTYPES.get(name, np.int64))
        if self.call == "retrieve":
            arrays["k"] = np.array([self.k])
        return arrays

    def case(self) -> Case:
        """Returns the native call."""
        if self.call == "embed":
            requests: list[dict[str, Any]] = [{"features": row} for row in self.rows]
            return Case("embed", "", {"tower": self.signature, "requests": requests})
        if self.call == "retrieve":
            return Case(
                "retrieve", "", {"k": self.k, "requests": [{"context": row} for row in self.rows]}
            )
        requests = [
            {
                "context": {name: row[name] for name in row if name not in _CANDIDATE},
                "candidate_features": {name: [row[name]] for name in _CANDIDATE},
            }
            for row in self.rows
        ]
        return Case("rank", "", {"heads": list(HEADS), "requests": requests})

    def outputs(self, results: Sequence[Mapping[str, Any]]) -> Arrays:
        """Returns the results of the native call, as JSON has them, as the outputs of the
        signature.
        """
        if self.call == "embed":
            return {"vector": np.array([result["vector"] for result in results], np.float32)}
        if self.call == "retrieve":
            return {
                "ids": np.array([result["ids"] for result in results], np.int64),
                "scores": np.array([result["scores"] for result in results], np.float32),
                "counts": np.array([len(result["ids"]) for result in results]),
            }
        heads = {name: [result["heads"][name][0] for result in results] for name in HEADS}
        outputs = {"score": [result["scores"][0] for result in results], **heads}
        return {name: np.array(values, np.float32) for name, values in outputs.items()}


def tensor_message(array: NDArray[Any]) -> tensorflow_pb.TensorProto:
    """Returns an input as TensorFlow's message, its elements in the field of their type."""
    message = tensorflow_pb.TensorProto()
    fill_tensor(message, array)
    return message


def random_tensors(seed: int) -> TensorRequest:
    """Returns a request of a random signature, with random features, rows and values."""
    draw = random.Random(seed)
    signature = draw.choice(list(SIGNATURES))
    optional = [name for name in _OPTIONAL[signature] if draw.random() < 0.6]
    names = [*_REQUIRED[signature], *optional]
    rows = [{name: _value(draw, name) for name in names} for _ in range(draw.randint(1, 4))]
    return TensorRequest(signature, rows, draw.randint(1, 9))


def _value(draw: random.Random, name: str) -> Any:
    match name:
        case "user":
            return draw.randint(-1, USERS + 5)
        case "movie":
            return draw.choice(_MOVIES)
        case "city":
            return draw.choice(["oslo", "bern", "", "são paulo"])
        case "hour" | "year":
            return _number(draw)
        case "mood":
            return [_number(draw), _number(draw)]
        case "genres":
            return [draw.choice([*GENRE_NAMES, "opera"]) for _ in range(draw.randint(0, 4))]
    return [draw.choice([*_MOVIES, _UNKNOWN]) for _ in range(draw.randint(0, 4))]


def _number(draw: random.Random) -> float:
    return float(np.float32(draw.uniform(-2, 2)))
