"""Intercepts every kind of lookup."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import early_rows, tables_unallocated
from export.partition.lookups.gathers import intercept_gathers
from export.partition.lookups.records import ActivationOf, TracedLookup, batch_size
from export.tensorflow_models.frameworks.normalizations import restore_normalizations
from export.tensorflow_models.frameworks.recurrences import unroll_recurrences
from export.tensorflow_models.frameworks.squeezes import keep_batches
from export.tensorflow_models.lookups.embedding_layers import MakeTable, intercept_layers
from export.tensorflow_models.lookups.encodings import intercept_encodings
from export.tensorflow_models.lookups.feature_columns import Lengths, intercept_columns, no_lengths
from export.tensorflow_models.lookups.keras_3_layers import gather_in_keras_3, intercept_keras_rs
from export.tensorflow_models.lookups.padded_ids import PaddedIds, intercept_averages
from export.tensorflow_models.lookups.ragged import intercept_ragged
from export.tensorflow_models.lookups.sparse import intercept_sparse


@contextlib.contextmanager
def early_lookups(make_table: MakeTable) -> Iterator[None]:
    """Allocates no table inside the `with` block, in which a model is built. Rows that the model
    looks up there are recognized later if it keeps them: see `early_rows`.

    Args:
      make_table: Returns the variable of an embedding layer's table.
    """

    def activation_of(lookup: TracedLookup) -> Any:
        shape = [batch_size(lookup.ids[0]), *lookup.shape[1:]]
        return early_rows(shape, tf.float32)

    with lookups_intercepted(make_table, activation_of, activation_of, early=True):
        yield


@contextlib.contextmanager
def lookups_intercepted(
    make_table: MakeTable,
    activation_of: ActivationOf,
    activation_of_gather: ActivationOf,
    lengths: Lengths = no_lengths,
    *,
    early: bool = False,
) -> Iterator[None]:
    """Allocates no table and replaces every lookup inside the `with` block.

    Args:
      make_table: Returns the variable of an embedding layer's table.
      activation_of: Returns the activation of a lookup.
      activation_of_gather: Returns the activation of a plain gather of one row per id; None leaves
        the gather in the graph.
      lengths: Returns how many ids of each example a sequence column has.
      early: Whether the model is being built.

    Raises:
      ExportError: An error of `activation_of`, without the call stacks that Keras and AutoGraph
        add.
    """
    activation_of = _with_max_norm(activation_of)
    activation_of_gather = _with_max_norm(activation_of_gather)
    padded = PaddedIds(activation_of)
    with tables_unallocated(), Hooks() as hooks:
        restore_normalizations(hooks, keep_adapted=True)
        keep_batches(hooks)
        unroll_recurrences(hooks)
        intercept_layers(hooks, make_table, activation_of, tracked=True)
        intercept_gathers(hooks, activation_of_gather, padded.gather, early=early)
        gather_in_keras_3(hooks)
        intercept_sparse(hooks, activation_of)
        intercept_ragged(hooks, activation_of, activation_of_gather, padded.pad)
        intercept_averages(hooks, padded)
        intercept_keras_rs(hooks, activation_of)
        intercept_encodings(hooks, activation_of)
        intercept_columns(hooks, activation_of, lengths)
        yield


def _with_max_norm(activation_of: ActivationOf) -> ActivationOf:
    """Returns a function that clips rows to a lookup's `max_norm` in the graph; a service clips
    those of bags.
    """

    def clip(lookup: TracedLookup) -> Any:
        activation = activation_of(lookup)
        # The rows of a bag are clipped before they are combined, which no tower sees.
        if activation is None or lookup.max_norm is None or lookup.kind == "bag":
            return activation
        return tf.clip_by_norm(activation, lookup.max_norm, axes=[-1])

    return clip
