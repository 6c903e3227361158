"""How far live scores of ranking towers drift from those of the examples at export.

Scores are counted by the bins of the bundle's distribution, for towers that have one, of requests
without a formula of their own. They count only for the current version of a model.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bundle.format.towers import SCORE_BINS_MAX
from service.observability.metrics import Metrics
from service.observability.sliding_sums import SlidingSums
from service.versions.lifecycle import VersionManager
from service.versions.version import LoadedTower

_SCORES_PER_CONTEXT = 8
"""Scores of one context that are counted, evenly spread: they are much alike, so that those of many
contexts show more than all scores of a few.
"""


class _Window:
    """The live scores of one tower in the last hour, by bin."""

    def __init__(self, tower: LoadedTower) -> None:
        self.tower = weakref.ref(tower)
        self.sums = SlidingSums(SCORE_BINS_MAX)


class ScoreDrift:
    """Counts live scores, and reports them beside those at export. Safe for any thread."""

    def __init__(self, versions: VersionManager, metrics: Metrics) -> None:
        """Creates counts of no scores.

        Args:
          versions: The loaded versions.
          metrics: Where the counts are reported.
        """
        self._versions = versions
        self._metrics = metrics
        self._lock = threading.Lock()
        self._counts: weakref.WeakKeyDictionary[LoadedTower, NDArray[np.int64]] = (
            weakref.WeakKeyDictionary()
        )
        self._windows: dict[tuple[str, str], _Window] = {}

    def count(self, tower: LoadedTower, scores: NDArray[np.float32], contexts: int) -> None:
        """Counts some of the scores of a tower by their bins; rendered after the next report.

        Args:
          tower: Has a distribution of scores.
          scores: [m] of all contexts.
          contexts: How many contexts there are.
        """
        # Every request waits for this, so that only some scores of each context are counted.
        step = max(1, scores.size // (_SCORES_PER_CONTEXT * max(1, contexts)))
        bins = np.searchsorted(tower.score_edges, scores[::step], side="right")
        counts = np.bincount(bins, minlength=SCORE_BINS_MAX)
        with self._lock:
            before = self._counts.get(tower)
            if before is not None:
                counts = counts + before
            self._counts[tower] = counts

    def report(self) -> None:
        """Sets the metrics; call it once per second."""
        current = {
            (model, name): tower
            for model, version in self._versions.current().items()
            for name, tower in version.towers.items()
            if tower.entry.scores is not None
        }
        with self._lock:
            counts_by_tower = dict(self._counts)
            self._counts.clear()
            for key in self._windows.keys() - current.keys():
                del self._windows[key]
                self._set("score_window", key, [0] * SCORE_BINS_MAX)
                self._set("score_baseline", key, [0] * SCORE_BINS_MAX)
            for key, tower in current.items():
                window = self._windows.get(key)
                # A new version of the model begins a new window, since its scores are others.
                if window is None or window.tower() is not tower:
                    window = self._windows[key] = _Window(tower)
                    self._set("score_baseline", key, tower.score_shares)
                counts = []
                if tower in counts_by_tower:
                    counts = counts_by_tower[tower].tolist()
                if any(counts):
                    window.sums.add(counts)
                    for number, count in enumerate(counts):
                        self._metrics.count("scores", count, *key, str(number))
                self._set("score_window", key, window.sums.totals())

    def _set(self, gauge: str, key: tuple[str, str], values: Sequence[float]) -> None:
        """Sets the gauge of each bin of a tower."""
        for number, value in enumerate(values):
            self._metrics.set(gauge, value, *key, str(number))
