"""What the training may choose; the values here were chosen on the validation split
(`train.py --select`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How one model is trained, and what its callers send."""

    epochs: int = 6
    batch: int = 256
    """Watched movies in a batch, each with its context."""
    negatives: int = 1024
    """Movies drawn evenly from the catalogue into each batch, beside the watched ones."""
    table_rate: float = 0.05
    """Learning rate of the tables (Adagrad)."""
    accumulator: float = 1e-6
    """What Adagrad's accumulators begin with: small, since a row's gradients are."""
    dense_rate: float = 0.001
    """Learning rate of everything else (Adam)."""
    history: int = 10
    """Newest watched movies that a request sends; the ranker looks at as many (model.WATCHED)."""
    gap: int = 9
    """The movie to find is up to this many interactions after the history's end, as the held-out
    ones are.
    """
    dropout: float = 0.2
    user_dropout: float = 0.2
    """Share of contexts whose viewer is hidden, so that strangers are served by their history."""
    balance: float = 0.3
    """Each interaction of a viewer who has c of them weighs c ** -balance."""
    later_epochs: int = 1
    """Those of the epochs that follow the ranker's training, and include what it was trained on."""
    rank_depth: int = 200
    """Movies that are retrieved and then ranked."""
    rank_random: int = 50
    """Movies drawn evenly that the ranker learns to put behind, beside those that are retrieved."""
    rank_epochs: int = 20
    rank_rate: float = 0.003
    """Learning rate of the ranker (Adam)."""
    narrower: int = 1
    """Tables and layers are this many times narrower than they are for MovieLens."""
    seed: int = 17
