"""Settings of the training. The values here were chosen on the validation split
(`train.py --select`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The settings of one model's training, and the length of its callers' histories."""

    epochs: int = 6
    batch: int = 256
    """Number of watched movies in a batch, each with its context."""
    negatives: int = 1024
    """Number of movies drawn evenly from the catalogue into each batch, beside the watched ones."""
    table_rate: float = 0.05
    """Learning rate of the tables (Adagrad)."""
    accumulator: float = 1e-6
    """Initial value of Adagrad's accumulators: small, since a row's gradients are small."""
    dense_rate: float = 0.001
    """Learning rate of everything else (Adam)."""
    history: int = 10
    """Number of newest watched movies that a request sends; the ranker uses as many
    (model.WATCHED).
    """
    gap: int = 9
    """Maximum number of interactions between the end of a history and its positive, as between a
    history and the held-out movies.
    """
    dropout: float = 0.2
    """Share of the activations that training leaves out."""
    user_dropout: float = 0.2
    """Share of contexts without the viewer, so that new viewers are served by their history."""
    balance: float = 0.3
    """An interaction of a viewer with c interactions has the weight c ** -balance."""
    later_epochs: int = 1
    """Number of epochs after the ranker's training, which include its interactions."""
    rank_depth: int = 200
    """Number of movies that are retrieved and then ranked."""
    rank_random: int = 50
    """Number of movies drawn evenly as negatives of the ranker, beside the retrieved ones."""
    rank_epochs: int = 20
    rank_rate: float = 0.003
    """Learning rate of the ranker (Adam)."""
    narrower: int = 1
    """Divisor of the widths of tables and layers; 1: the widths for MovieLens."""
    seed: int = 17
