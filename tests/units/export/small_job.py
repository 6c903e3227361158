"""A whole job that is small in every way, for tests of what knows no model: the journal, and checks
that fail.

A run has every kind of step that one of the movies has, and takes a third of its processor time. It
reads the vocabulary and the corpus of `movies_job`, whose `write_project` writes both.
"""

from __future__ import annotations

from pathlib import Path

from tests.units.export.movies_job import Recipe, changed
from tests.units.export.traced_models import IDS, recipe, save_checkpoint

TABLE_STEPS = 7
"""created, a vocabulary, a store, two filters, two tables."""
STEPS = TABLE_STEPS + 7
"""Two towers in two forms, vectors, an index (in two)."""


def save_small_recipe(directory: Path, seed: int = 5) -> Recipe:
    """Saves a checkpoint; returns a recipe of it, with an index of exact search.

    Args:
      directory: Where the checkpoint is written.
      seed: Other seeds give other weights.
    """
    sections = {
        "model": "small",
        # No table stays inside its tower.
        "code": {"factory": "plain_module.py:build", "table_threshold": 1},
        "vocabularies": {"movies": {"file": "movie_ids.txt", "dtype": "int64"}},
        "features": {
            "movie_id": {
                "role": "candidate",
                "ids": {"kind": "vocabulary", "vocabulary": "movies"},
            }
        },
        "corpora": {
            "movies": {
                "file": "movies.csv",
                "id": "movieId",
                "features": {"movie_id": "movieId", "year": "year"},
                "attributes": ["title", "year"],
                "filters": ["genres", "year"],
            }
        },
        "indexes": {
            "movies": {"corpus": "movies", "query_tower": "query", "candidate_tower": "candidate"}
        },
        "verify": {"count": 24},
    }
    job = recipe(
        "plain_module.py:build",
        {"user_id": IDS, "movie_id": IDS, "year": {"dtype": "float32"}},
        {
            "query": {"role": "query", "call": "query"},
            "candidate": {"role": "candidate", "call": "candidate"},
        },
        sections,
    )
    prefix = save_checkpoint(job, directory, seed)
    page = job.model_dump(mode="json", exclude_unset=True)
    return changed(page, "checkpoint.path", str(prefix))


def with_tree(recipe: Recipe, **recall: float) -> Recipe:
    """Returns the recipe with a tree, which has codes beside it.

    Its leaves hold two candidates each, and one is searched: most of what is near is not found.
    """
    index = recipe["indexes"]["movies"] | {
        "kind": "tree_ah",
        "distance": "squared_l2",
        "parameters": {"num_leaves": 20, "leaves_to_search": 1, "reorder": 1},
        "recall": recall,
    }
    return changed(recipe, "indexes.movies", index)
