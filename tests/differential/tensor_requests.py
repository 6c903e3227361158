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

from tensors.stubs import tensorflow_serving_pb2 as tf_pb
from tests.bundles.small import GENRE_NAMES, USERS, candidate_ids
from tests.bundles.tfrecords import example
from tests.cases.ways import RawRequest
from tests.differential import tensor_forms as forms
from tests.units.service.cases import MODEL, Case

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
LISTS = ("history", "liked", "recent", "genres")
_TEXTS = ("city", "genres")
_NUMBERS = ("mood", "year")
_DTYPES = {
    "user": ("i1", "i2", "i4", "i8"),
    "hour": ("i1", "i4", "f2", "f4"),
    "number": ("f2", "f4", "f8"),
    "id": ("i2", "u2", "i4", "u4", "i8", "u8"),
}
"""The dtypes of whose arrays the values can be elements."""
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
      dtypes: The dtype of the array of each feature.
      sparse: The lists that are sent as sparse tensors.
    """

    signature: str
    rows: Sequence[Mapping[str, Any]]
    k: int
    dtypes: Mapping[str, Any]
    sparse: Sequence[str]

    @property
    def call(self) -> str:
        """Returns the name of the native call."""
        return SIGNATURES[self.signature]

    def arrays(self) -> Arrays:
        """Returns the inputs as named tensors; a list of any length as values and row splits, or as
        a sparse tensor.
        """
        arrays: Arrays = {}
        for name in self.rows[0]:
            values = [row[name] for row in self.rows]
            if name in LISTS:
                sizes = [len(row) for row in values]
                values = [value for row in values for value in row]
            array = np.array(values, self.dtypes[name])
            if name in self.sparse:
                indices = [
                    [row, 2 * column] for row, size in enumerate(sizes) for column in range(size)
                ]
                arrays[name] = np.array(indices, np.int64).reshape(-1, 2)
                arrays[f"{name}_1"] = array
                arrays[f"{name}_2"] = np.array([len(sizes), 2 * max(sizes) + 1])
                continue
            arrays[name] = array
            if name in LISTS:
                arrays[f"{name}_1"] = np.cumsum([0, *sizes])
        if self.call == "retrieve":
            arrays["k"] = np.array([self.k])
        return arrays

    def instances(self) -> RawRequest:
        """Returns the rows as TensorFlow Serving's JSON has them."""
        rows = [dict(row) for row in self.rows]
        if self.call == "retrieve":
            rows = [row | {"k": self.k} for row in rows]
        value = {"signature_name": self.signature, "instances": rows}
        return RawRequest(f"{forms.REST}:predict", value)

    def examples(self, call: str) -> Sequence[RawRequest]:
        """Returns the rows as Examples, in JSON and as a message. The first row is their context:
        it stands for values of other rows that are equal.
        """
        context, *_ = self.rows
        rows = [
            {name: value for name, value in row.items() if value != context[name]}
            for row in self.rows
        ]
        spec = {"signature_name": self.signature}
        value = {**spec, "examples": rows, "context": dict(context)}
        listed = tf_pb.ExampleListWithContext(
            examples=[example(row, tf_pb) for row in rows], context=example(context, tf_pb)
        )
        message = tf_pb.ExamplesRequest(
            model_spec=tf_pb.ModelSpec(name=MODEL, **spec),
            input=tf_pb.Input(example_list_with_context=listed),
        )
        method = f"/{forms.PREDICTION}/{call.capitalize()}"
        return (
            RawRequest(f"{forms.REST}:{call}", value),
            RawRequest(method, None, message.SerializeToString()),
        )

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


def random_tensors(seed: int) -> TensorRequest:
    """Returns a request of a random signature, with random features, rows and values."""
    draw = random.Random(seed)
    signature = draw.choice(list(SIGNATURES))
    optional = [name for name in _OPTIONAL[signature] if draw.random() < 0.6]
    names = [*_REQUIRED[signature], *optional]
    rows = [{name: _value(draw, name) for name in names} for _ in range(draw.randint(1, 4))]
    # JSON has no array without elements that has two axes.
    filled = [name for name in names if name in LISTS and any(row[name] for row in rows)]
    sparse = [name for name in filled if draw.random() < 0.3]
    dtypes = {name: _dtype(draw, name) for name in names}
    return TensorRequest(signature, rows, draw.randint(1, 9), dtypes, sparse)


def _dtype(draw: random.Random, name: str) -> Any:
    if name in _TEXTS:
        return object
    kind = name if name in _DTYPES else "id"
    if name in _NUMBERS:
        kind = "number"
    return draw.choice(_DTYPES[kind])


def _value(draw: random.Random, name: str) -> Any:
    match name:
        case "user":
            return draw.randint(-1, USERS + 5)
        case "movie":
            return draw.choice(_MOVIES)
        case "city":
            return draw.choice(["oslo", "bern", "", "são paulo"])
        case "hour":
            return float(draw.randint(-3, 3))
        case "year":
            return _number(draw)
        case "mood":
            return [_number(draw), _number(draw)]
        case "genres":
            return [draw.choice([*GENRE_NAMES, "opera"]) for _ in range(draw.randint(0, 4))]
    return [draw.choice([*_MOVIES, _UNKNOWN]) for _ in range(draw.randint(0, 4))]


def _number(draw: random.Random) -> float:
    """Returns a number that floats of any size hold."""
    return draw.randint(-64, 64) / 32
