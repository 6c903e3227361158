"""What is checked of the options that retrievals and recommendations share."""

from __future__ import annotations

from collections.abc import Sequence

from bundle.features.columns import Column
from service.config import ServiceSettings
from service.contract.limits import at_most
from service.contract.messages import Ids, SelectionRequest
from service.engine.retrieval.pool import Selection
from service.engine.validation import NUMBER_BYTES, check_attributes, check_bytes, check_values
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import LoadedStore

_CROWDING_TYPES = ("string", "int64", "bool")
"""Types of attributes that crowding may limit: two doubles are hardly ever equal."""


def check_selection(
    corpus: LoadedStore,
    request: SelectionRequest,
    settings: ServiceSettings,
    ids: Sequence[Ids | None],
    *columns: Column,
) -> None:
    """Rejects attributes that are not stored, a recall that is none, and more values than the
    limit.

    Args:
      corpus: The candidates.
      request: The request.
      settings: The limits.
      ids: The ids of the queries.
      columns: The columns of the queries.
    """
    if request.attributes:
        check_attributes(corpus, request.attributes, "attributes")
    id_arrays = [*ids, request.context_ids]
    if request.exclude_ids is not None:
        id_arrays.append(request.exclude_ids.ids)
    if request.negative_ids is not None:
        # Their vectors are read.
        at_most(settings, "max_candidates", request.negative_ids.ids.size, "negative_ids")
        id_arrays.append(request.negative_ids.ids)
    if request.filter is not None:
        id_arrays += request.filter.tokens
    check_values(settings, columns, *id_arrays)
    if not 0 <= request.recall <= 1:
        raise InvalidArgument.of_field("recall", request.recall, "0 (as exported) to 1")


def check_response(selection: Selection) -> None:
    """Rejects a request whose response would have too many neighbors.

    Raises:
      TooLarge: The neighbors exceed `max_response_bytes`.
    """
    corpus = selection.sources.corpus
    attributes = selection.request.attributes
    neighbor_bytes = 2 * NUMBER_BYTES + corpus.store.text_bytes("id")
    for name in attributes:
        neighbor_bytes += corpus.store.text_bytes(f"attribute:{name}")
    count = selection.execution.largest(selection.n) * min(selection.k, corpus.entry.size)
    check_bytes(
        count * neighbor_bytes,
        f"{count} neighbors with {len(attributes)} attributes",
        selection.settings,
        "lower k, request fewer attributes, or send fewer queries at a time",
    )


def check_options(request: SelectionRequest, corpus: LoadedStore, k: int) -> None:
    """Rejects a request whose options are out of range.

    Raises:
      InvalidArgument: The pool_size, offset, crowding or diversity is out of range;
        names its value and what was expected.
    """
    if request.pool_size and request.pool_size < k:
        message = f"pool_size is {request.pool_size}; at least k, which is {k}, was expected"
        violation = FieldViolation("pool_size", str(request.pool_size), "at least k")
        raise InvalidArgument(message, violation)
    if request.offset is not None:
        _check_page(request, request.offset, k)
    if not 0 <= request.diversity <= 1:
        raise InvalidArgument.of_field("diversity", request.diversity, "0 to 1")
    if not request.crowding:
        return
    check_attributes(corpus, request.crowding, "crowding")
    for name, maximum in request.crowding.items():
        kind = corpus.entry.attributes[name]
        if kind not in _CROWDING_TYPES:
            value = f"an attribute of type {kind}"
            expected = f"one of type {', '.join(_CROWDING_TYPES)}"
            raise InvalidArgument.of_field(f"crowding.{name}", value, expected)
        if maximum < 1:
            raise InvalidArgument.of_field(f"crowding.{name}", maximum, "at least 1")


def _check_page(request: SelectionRequest, offset: int, k: int) -> None:
    if offset < 0:
        raise InvalidArgument.of_field("offset", offset, "at least 0")
    if not request.pool_size:
        expected = "the size of the pool, the same for each page"
        message = f"offset was sent without pool_size; send {expected}"
        raise InvalidArgument(message, FieldViolation("pool_size", "empty", expected))
    if offset + k > request.pool_size:
        expected = "offset + k of at most pool_size"
        message = (
            f"offset is {offset} and k is {k}, more than the {request.pool_size} candidates of "
            f"the pool; {expected} was expected"
        )
        raise InvalidArgument(message, FieldViolation("offset", str(offset), expected))
