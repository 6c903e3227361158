"""Checks that the towers of a version take the features of changed candidates and contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.features.columns import OutputBlock
from bundle.format.manifest import inputs_of
from runtime.errors import ComputationFailed
from service.changes.embedding import shards_needed
from service.contract.messages import Columns
from service.engine import lookup
from service.engine.computation import completed
from service.engine.examples import example_columns
from service.engine.execution import Execution
from service.engine.ranking import formulas
from service.engine.ranking.pool_scores import PoolTower
from service.engine.ranking.rank import Candidates
from service.engine.validation import NotFinite, show_id
from service.errors import FieldViolation, InvalidArgument, RowNotFinite
from service.versions.version import LoadedTower, ModelVersion


class TowerChecks:
    """The towers of a version, as what reads changed candidates and contexts."""

    def __init__(self, loaded: ModelVersion) -> None:
        """Takes the version as it was loaded."""
        self._loaded = loaded
        self._contexts: dict[str, Columns] = {}
        """A context that each ranking tower takes, by its name."""

    def check_features(self, features: Columns, n: int) -> None:
        """Checks values as the features of towers check those of a request.

        Args:
          features: A column of n examples by input.
          n: The number of examples.

        Raises:
          FeatureError: A value does not fit a feature that reads it.
          ShardsFailed: The row of an id is lost, and the feature rejects unknown ids.
        """
        feature_names: dict[str, None] = {}
        loaded = self._loaded
        for tower in loaded.towers.values():
            feature_names |= dict.fromkeys(tower.features)
        # Features that read something else, too, are checked with it, by the rankings.
        manifest = loaded.manifest
        names = tuple(
            name
            for name in feature_names
            if features.keys() >= {*inputs_of(name, manifest.features[name])}
        )
        block = OutputBlock(np.empty((0, 0)), names, ())
        fetched = completed(lookup.fetch(loaded, [([block], features, n)], Execution("change")))
        with shards_needed(loaded):
            loaded.reader.activations(names, features, n, fetched)

    def check_rankings(self, corpus: str, features: Columns, ids: NDArray[Any]) -> None:
        """Checks that ranking towers compute finite outputs of candidates, for one context.

        Args:
          corpus: The name of the corpus.
          features: A column of m candidates by input.
          ids: The ids of the candidates, [m].

        Raises:
          InvalidArgument: A tower does not; names the tower and a candidate.
          ServiceError: A shard does not respond.
        """
        loaded = self._loaded
        manifest = loaded.manifest
        for tower in loaded.towers.values():
            inputs = tower.by_role["candidate"]
            columns = {name: column for name, column in features.items() if name in inputs}
            # Candidates of which the corpus lacks an input are ranked by what clients send.
            is_sent_by_clients = any(
                name not in columns and manifest.default_of(name) is None for name in inputs
            )
            if tower.entry.role != "ranking" or not columns or is_sent_by_clients:
                continue
            outputs = tower.heads | formulas.outputs_of(tower, tower.formula)
            ranking = PoolTower(loaded, tower, tower.plan(outputs), self._context(tower))
            offsets = np.array([0, ids.size], np.int64)
            candidates = Candidates(offsets, columns, loaded.corpora[corpus])
            try:
                scores = completed(ranking.score(candidates, Execution("change")))
            except (BundleError, ComputationFailed, NotFinite, RowNotFinite):
                # Nothing can be ranked for this context: that says nothing of the candidates.
                continue
            finally:
                tower.release_thread()
            for left_out in scores.left_out[:1]:
                id_text = show_id(ids.tolist()[left_out.positions[0]])
                message = (
                    f"features: tower {tower.name!r} cannot rank candidates such as {id_text}, "
                    f"because {left_out.clause}"
                )
                expected = f"values of which tower {tower.name!r} computes finite numbers"
                violation = FieldViolation("features", f"those of {id_text}", expected)
                raise InvalidArgument(message, violation)

    def _context(self, tower: LoadedTower) -> Columns:
        """Returns a context that a ranking tower takes."""
        if tower.name not in self._contexts:
            context = example_columns(self._loaded, tower.by_role["context"])
            self._contexts[tower.name] = context
        return self._contexts[tower.name]
