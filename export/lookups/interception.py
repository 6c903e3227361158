"""Every way of looking up, intercepted at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from export.errors import ExportError
from export.frameworks.loading import load_tensorflow
from export.frameworks.normalizations import normalizations_restored
from export.frameworks.placeholders import tables_unallocated
from export.frameworks.squeezes import batches_unsqueezed
from export.lookups.embedding_layers import intercepted
from export.lookups.encodings import encodings_intercepted
from export.lookups.feature_columns import Lengths, columns_intercepted, no_lengths
from export.lookups.filled_ids import FilledIds, masked_means_intercepted
from export.lookups.gathers import gathers_intercepted
from export.lookups.keras_rs import keras_rs_intercepted
from export.lookups.ragged import ragged_lookups_intercepted
from export.lookups.records import Answer, Lookup, MakeTable, refusals_freed
from export.lookups.sparse import sparse_lookups_intercepted


@contextlib.contextmanager
def lookups_intercepted(
    make_table: MakeTable, answer: Answer, gather: Answer, lengths: Lengths = no_lengths
) -> Iterator[None]:
    """Makes no table, and answers every lookup, within the `with`.

    Args:
      make_table: returns the variable of an embedding layer's table.
      answer: returns the activation of a lookup.
      gather: likewise, of one that gathers a row for each id and does no more; it may return None.
      lengths: returns how many ids of each example a sequence column has.
    Raises:
      ExportError: what `answer` raised, freed of the call stacks that Keras and AutoGraph wrap it in.
    """

    def told(lookup: Lookup, how: Answer) -> Any:
        try:
            return _scaled(lookup, how)
        except ExportError as problem:
            refusals.append(problem)
            raise

    def fill(*given: Any) -> Any:
        try:
            return filled.fill(*given)
        except ExportError as problem:
            refusals.append(problem)
            raise

    filled = FilledIds(lambda lookup: told(lookup, answer))
    with refusals_freed() as refusals, contextlib.ExitStack() as entered:
        entered.enter_context(tables_unallocated())
        entered.enter_context(normalizations_restored(kept=True))
        entered.enter_context(batches_unsqueezed())
        entered.enter_context(intercepted(make_table, lambda lookup: told(lookup, answer), tracked=True))
        entered.enter_context(masked_means_intercepted(filled))
        entered.enter_context(gathers_intercepted(lambda lookup: told(lookup, gather), filled.gather))
        entered.enter_context(sparse_lookups_intercepted(lambda lookup: told(lookup, answer)))
        told_by = (lambda lookup: told(lookup, answer), lambda lookup: told(lookup, gather))
        entered.enter_context(ragged_lookups_intercepted(*told_by, fill))
        entered.enter_context(keras_rs_intercepted(lambda lookup: told(lookup, answer)))
        entered.enter_context(encodings_intercepted(lambda lookup: told(lookup, answer)))
        entered.enter_context(columns_intercepted(lambda lookup: told(lookup, answer), lengths))
        yield


def _scaled(lookup: Lookup, how: Answer) -> Any:
    """Answers a lookup; rows of ids one by one that are longer than its `max_norm` are scaled in the graph."""
    if lookup.max_norm is None or lookup.kind == "bag":
        return how(lookup)
    return load_tensorflow().clip_by_norm(how(lookup), lookup.max_norm, axes=[-1])
