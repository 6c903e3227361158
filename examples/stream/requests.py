"""Messages of a partition as requests: consecutive messages of the same shape are sent together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rowcast_client import ChangeResult, Client

from examples.stream.messages import Item


@dataclass(frozen=True)
class Batch:
    """Items of one request: at least one, each id once, all of the same shape.

    Attributes:
      items: The items, in the order of the partition.
    """

    items: Sequence[Item]

    @property
    def end(self) -> int:
        """The offset behind the last item."""
        return self.items[-1].offset + 1

    def halves(self) -> tuple[Batch, Batch]:
        """Returns the first and the second half of several items."""
        middle = len(self.items) // 2
        return Batch(self.items[:middle]), Batch(self.items[middle:])

    def from_offset(self, offset: int) -> Batch | None:
        """Returns the items from an offset on; None: all lie before it."""
        items = [item for item in self.items if item.offset >= offset]
        if not items:
            return None
        return Batch(items)


def batches(items: Iterable[Item]) -> Iterator[Batch]:
    """Divides items into batches, in their order: a repeated id begins a new batch, and so does
    another shape.
    """
    batch: list[Item] = []
    keys = set()
    for item in items:
        is_new_shape = batch and (item.shape != batch[0].shape or _mixes(item, batch[0]))
        if item.key in keys or is_new_shape:
            yield Batch(batch)
            batch = []
            keys = set()
        batch.append(item)
        keys.add(item.key)
    if batch:
        yield Batch(batch)


def _mixes(item: Item, first: Item) -> bool:
    """Returns whether one of two items has an integer as its id, and the other one a text."""
    return isinstance(item.key, str) != isinstance(first.key, str)


def send(client: Client, model: str, stream: str, from_offset: int, batch: Batch) -> ChangeResult:
    """Sends a batch; returns the state after it.

    Args:
      client: The client of the service.
      model: The name of the model.
      stream: The name of the stream.
      from_offset: The offset up to which the stream was applied, as far as the consumer knows.
      batch: The changes.

    Raises:
      RowcastError: The batch was not applied, or the service did not confirm it: see
        `rowcast_client.errors`. If it is sent again, it is applied at most once.
    """
    ids = [item.key for item in batch.items]
    values = [item.value for item in batch.items]
    first = values[0]
    options: dict[str, Any] = {
        "model": model,
        "stream": stream,
        "offset": batch.end,
        "from_offset": from_offset,
    }
    if first.sequence is not None:
        options["sequences"] = [value.sequence for value in values]
    features = _columns([value.features for value in values])
    attributes = _columns([value.attributes for value in values])
    match batch.items[0].kind, first.action:
        case "candidates", "upsert":
            return client.upsert_candidates(
                ids,
                features,
                attributes=attributes,
                vectors=_columns([value.vectors for value in values]),
                expires_s=[value.expires_s for value in values],
                corpus=first.target,
                **options,
            )
        case "candidates", "attributes":
            return client.set_candidate_attributes(ids, attributes, corpus=first.target, **options)
        case "candidates", _:
            return client.delete_candidates(ids, corpus=first.target, **options)
        case _, "upsert":
            return client.upsert_contexts(
                ids, features, attributes=attributes, store=first.target, **options
            )
        case _, "attributes":
            return client.set_context_attributes(ids, attributes, store=first.target, **options)
        case _:
            return client.delete_contexts(ids, store=first.target, **options)


def _columns(objects: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the values of objects with the same fields, by field."""
    return {name: [value[name] for value in objects] for name in objects[0]}
