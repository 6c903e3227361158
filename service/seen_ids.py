"""How many ids were looked up, by model and feature: what those that a table does not know are a share of.

A lookup of many features counts once for all that have one id an example, and bags one by one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

_LOOKUPS_MAX = 1024
"""Sets of features that are counted as one; requests that leave features out in ever new ways make no more."""


class Values(Protocol):
    """A column, as far as it matters here."""

    @property
    def values(self) -> Sized:
        """Of all examples."""


Kind = Callable[[str], tuple[str, bool] | None]
"""A feature's name -> its input, and whether it has one id an example; None: it has no ids."""


class _Lookup:
    """A set of features that are looked up together."""

    __slots__ = ("bags", "examples", "singles")

    def __init__(self, names: tuple[str, ...], kind: Kind) -> None:
        kinds = [(name, kind(name)) for name in names]
        self.singles = [name for name, each in kinds if each is not None and each[1]]
        self.bags = [(name, each[0]) for name, each in kinds if each is not None and not each[1]]
        self.examples = 0


class SeenIds(Collector):
    """Counts ids that were looked up. Safe to call from any thread."""

    def __init__(self) -> None:
        """Begins with none."""
        self._lock = threading.Lock()
        self._lookups: dict[tuple[str, int, tuple[str, ...]], _Lookup] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(
        self, model: str, version: int, names: tuple[str, ...], columns: Mapping[str, Values], n: int, kind: Kind
    ) -> None:
        """Counts one lookup.

        Args:
          model, version: whose features they are.
          names: of the features.
          columns: what was sent, by input; where nothing was, a bag has no ids, and a single one its default.
          n: examples.
          kind: of a feature; asked when a set of features is first seen.
        """
        key = (model, version, names)
        with self._lock:
            lookup = self._lookups.get(key)
            if lookup is None:
                if len(self._lookups) >= _LOOKUPS_MAX:
                    self._fold(lambda _: False)
                lookup = self._lookups[key] = _Lookup(names, kind)
            lookup.examples += n
            for name, read in lookup.bags:
                if read in columns:
                    self._counts[model, name] += len(columns[read].values)

    def keep(self, versions: set[tuple[str, int]]) -> None:
        """Tells which versions of models there are; the counts of others stay."""
        with self._lock:
            self._fold(versions.__contains__)

    def _fold(self, kept: Callable[[tuple[str, int]], bool]) -> None:
        """Adds what was counted up, and forgets the sets of versions that are not kept."""
        for (model, version, names), lookup in list(self._lookups.items()):
            for name in lookup.singles:
                self._counts[model, name] += lookup.examples
            lookup.examples = 0
            if not kept((model, version)):
                del self._lookups[model, version, names]

    def describe(self) -> list[CounterMetricFamily]:
        """Tells the registry the name without a value."""
        told = "Ids that were looked up, defaults of what was not sent among them"
        return [CounterMetricFamily("rowcast_ids", told, labels=("model", "feature"))]

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Tells the registry every count."""
        with self._lock:
            self._fold(lambda _: True)
            counts = dict(self._counts)
        (family,) = self.describe()
        for labels, count in counts.items():
            family.add_metric(labels, count)
        yield family
