"""Intercepts every kind of lookup."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.normalizations import restore_normalizations
from export.tensorflow_models.frameworks.placeholders import early_rows, tables_unallocated
from export.tensorflow_models.frameworks.recurrences import unroll_recurrences
from export.tensorflow_models.frameworks.squeezes import keep_batches
from export.tensorflow_models.lookups.embedding_layers import intercept_layers
from export.tensorflow_models.lookups.encodings import intercept_encodings
from export.tensorflow_models.lookups.feature_columns import Lengths, intercept_columns, no_lengths
from export.tensorflow_models.lookups.gathers import intercept_gathers
from export.tensorflow_models.lookups.keras_rs import intercept_keras_rs
from export.tensorflow_models.lookups.padded_ids import PaddedIds, intercept_averages
from export.tensorflow_models.lookups.ragged import intercept_ragged
from export.tensorflow_models.lookups.records import Answer, Lookup, MakeTable, batch_size
from export.tensorflow_models.lookups.sparse import intercept_sparse
from export.tensorflow_models.lookups.specified import intercept_specified


@contextlib.contextmanager
def early_lookups(make_table: MakeTable) -> Iterator[None]:
    """Allocates no table inside the `with` block, in which a model is built. What the model looks
    up there is found again if it is kept: see `early_rows`.

    Args:
      make_table: returns the variable of an embedding layer's table.
    """

    def answer(lookup: Lookup) -> Any:
        shape = [batch_size(lookup.ids[0]), *lookup.shape[1:]]
        return early_rows(shape, tf.float32)

    with lookups_intercepted(make_table, answer, answer, early=True):
        yield


@contextlib.contextmanager
def lookups_intercepted(
    make_table: MakeTable,
    answer: Answer,
    gather: Answer,
    lengths: Lengths = no_lengths,
    *,
    early: bool = False,
) -> Iterator[None]:
    """Allocates no table and replaces every lookup inside the `with` block.

    Args:
      make_table: returns the variable of an embedding layer's table.
      answer: returns the activation of a lookup.
      gather: likewise for a plain gather of one row per id; may return None.
      lengths: returns how many ids of each example a sequence column has.
      early: whether the model is being built.
    Raises:
      ExportError: raised by `answer`; without the call stacks that Keras and AutoGraph add.
    """
    answer = _with_max_norm(answer)
    gather = _with_max_norm(gather)
    padded = PaddedIds(answer)
    with tables_unallocated(), Hooks() as hooks:
        restore_normalizations(hooks, kept=True)
        keep_batches(hooks)
        unroll_recurrences(hooks)
        intercept_layers(hooks, make_table, answer, tracked=True)
        intercept_gathers(hooks, gather, padded.gather, early=early)
        intercept_sparse(hooks, answer)
        intercept_ragged(hooks, answer, gather, padded.pad)
        intercept_averages(hooks, padded)
        intercept_keras_rs(hooks, answer)
        intercept_encodings(hooks, answer)
        intercept_columns(hooks, answer, lengths)
        intercept_specified(hooks, answer)
        yield


def _with_max_norm(answer: Answer) -> Answer:
    """Clips rows to a lookup's `max_norm` in the graph; for bags the service does."""

    def scaled(lookup: Lookup) -> Any:
        found = answer(lookup)
        if found is None or lookup.max_norm is None or lookup.kind == "bag":
            return found
        return tf.clip_by_norm(found, lookup.max_norm, axes=[-1])

    return scaled
