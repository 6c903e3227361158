"""Features of `tf.train.Example`, in records and in requests.

Source: tensorflow/core/example/feature.proto; tensorflow_serving/apis/input.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import chosen_bags, lengths_of, offsets_of
from tensors.arrays import Limits, Ragged, at_most, typed_array
from tensors.errors import NAME_CHARS_MAX, TensorError
from tensors.stubs import tensorflow_serving_pb2 as pb

Features = Mapping[str, Sequence[Any]]
"""The values of each feature of one example: integers, floats, or strings that are bytes or str."""


def feature_values(feature: pb.Feature | None) -> tuple[str, Sequence[Any]]:
    """Returns the kind of a feature (int64, float or bytes) and its values; "": it has none."""
    if feature is not None:
        kind = feature.WhichOneof("kind")
        if kind is not None:
            return kind.removesuffix("_list"), getattr(feature, kind).value
    return "", ()


def features_of(example: pb.Example) -> Features:
    """Returns the features of an example that have a kind."""
    features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            features[name] = list(getattr(feature, kind).value)
    return features


class Examples(Mapping[str, "NDArray[Any] | Ragged"]):
    """Features by name, of n examples; an example that lacks a feature has that of the context.

    An array is made when it is read: if each example has a name of its own, the arrays of all names
    are as large as the square of their message.

    Attributes:
      count: n.
    """

    def __init__(
        self,
        count: int,
        examples: Iterable[Features],
        context: Features,
        limits: Limits | None = None,
    ) -> None:
        """Counts the values of examples.

        Args:
          count: n. It is checked before the examples are read.
          examples: The features of each example.
          context: The features of all examples.
          limits: How much all examples may have; None: any number.

        Raises:
          TensorError: There is no example.
          TooMuch: There are more examples, features or values than the limits.
        """
        if not count:
            raise TensorError("examples", "empty", "at least one example")
        if limits is not None:
            at_most(limits, "max_queries", count, "examples")
        self.count = count
        self._context = context
        # Features keep the order in which they occur, the context's first.
        self._lists: dict[str, dict[int, Sequence[Any]]] = {name: {} for name in context}
        for number, example in enumerate(examples):
            for name, values in example.items():
                self._lists.setdefault(name, {})[number] = values
        if limits is None:
            return
        at_most(limits, "max_features", len(self._lists), "examples")
        value_count = 0
        for name, lists in self._lists.items():
            # An example takes memory for a feature that it lacks, too: at least as for one value.
            value_count += (count - len(lists)) * max(1, len(context.get(name, ())))
            value_count += sum(map(len, lists.values()))
        at_most(limits, "max_values", value_count, "examples")

    def __getitem__(self, name: str) -> NDArray[Any] | Ragged:
        """Returns the values of a feature: [n, k] if all examples have k values.

        Raises:
          TensorError: The feature has values of two kinds.
        """
        lists = self._lists[name]
        distinct_lists = list(lists.values())
        if len(lists) < self.count:
            distinct_lists.append(self._context.get(name, ()))
        values = typed_array(
            list(chain.from_iterable(distinct_lists)), f"examples.{name[:NAME_CHARS_MAX]}"
        )
        # One value stands for all examples, however many there are.
        if not lists:
            return np.broadcast_to(values, (self.count, values.size))

        offsets = offsets_of(list(map(len, distinct_lists)))
        if len(lists) < self.count:
            # The context's list is the last.
            chosen = np.full(self.count, len(lists))
            chosen[list(lists)] = np.arange(len(lists))
            positions, offsets = chosen_bags(offsets, chosen)
            values = values[positions]
        lengths = lengths_of(offsets)
        if (lengths == lengths[0]).all():
            return values.reshape(self.count, int(lengths[0]))
        return Ragged(values, offsets)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)

    def __contains__(self, name: object) -> bool:
        return name in self._lists


def read_examples(message: pb.Input, limits: Limits | None = None) -> Examples:
    """Reads the input of a ClassificationRequest or a RegressionRequest; see `Examples`."""
    context: Features = {}
    examples = message.example_list.examples
    if message.WhichOneof("kind") == "example_list_with_context":
        examples = message.example_list_with_context.examples
        context = features_of(message.example_list_with_context.context)
    return Examples(len(examples), map(features_of, examples), context, limits)
