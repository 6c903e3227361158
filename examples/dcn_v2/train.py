"""Trains DCN v2 on clicks in Criteo's shape and writes the files of an export.

python -m examples.dcn_v2.train [--out DIR] [--variant full|low_rank]
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from examples import criteo, requests, trained, training
from examples.dcn_v2.model import DCN, Sizes

IDS = tuple(min(most, 10) for most in criteo.MULTI_HOT_SIZES)
"""Some of the benchmark's categories have up to 100 ids, which would only make the requests longer.
"""
SIZES = {
    "tiny": Sizes(criteo.scaled(300, 30), IDS, 2, (8,), 1, None, (8,)),
    "small": Sizes(criteo.scaled(200_000, 20_000), IDS, 16, (64, 32), 3, None, (128, 64)),
    "article": Sizes(
        criteo.VOCABULARY_SIZES,
        criteo.MULTI_HOT_SIZES,
        16,
        (512, 256),
        3,
        None,
        (1024, 1024, 512, 256),
    ),
}
RANKS = {"tiny": 4, "small": 64, "article": 128}
EXAMPLES = {"tiny": 2_000, "small": 150_000, "article": 4_000_000}
BATCH = 1_000
CANDIDATES = 20
"""Number of candidates of a request."""
VARIANTS = ("full", "low_rank")


def train(out: Path, scale: trained.Scale = "small", variant: str = "full") -> None:
    """Trains, and writes the folder `out`."""
    tf.keras.utils.set_random_seed(11)
    sizes = SIZES[scale]
    n = EXAMPLES[scale]
    if variant == "low_rank":
        sizes = replace(sizes, rank=RANKS[scale])
    optimizers = training.optimizers()
    model = DCN(sizes, optimizers.tables)
    data = criteo.Clicks(sizes.rows, sizes.ids, seed=4)
    training.fit_clicks(model, optimizers, data, n, BATCH)
    contexts = data.contexts(requests.COUNT[scale])
    candidates = data.candidates(CANDIDATES * requests.COUNT[scale])
    pairs = requests.pairs(contexts, candidates)
    expected = {"score": requests.model_outputs(model, pairs, ["click"])["click"]}
    reference = trained.ReferenceRequests(requests.rankings(contexts, candidates), expected, pairs)
    trained.write(out, Path(__file__).parent, sizes, model, optimizers, reference)


if __name__ == "__main__":
    trained.command_line("dcn_v2", train, VARIANTS)
