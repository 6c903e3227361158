"""Users, ads and the events after ads were shown: thousands of categories, some of which have an
effect on the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from examples.columns import Ints
from examples.criteo import effect
from examples.snap_tf1.model import HEADS, SEEN, Sizes

EFFECTIVE = 40
"""Number of features of a user, and of an ad, that have an effect; the others are noise."""


class Impressions:
    """Draws users and ads. The same seed draws the same impressions."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        """Draws the ads of the corpus."""
        self._sizes = sizes
        self._random = np.random.default_rng(seed)
        self._user_names = tuple(name for name in sizes.features if name not in sizes.ad_names)
        self.ads = {name: self._ids(name, sizes.ads) for name in sizes.ad_names}
        self.ads["ad"] = np.arange(sizes.ads)

    def _ids(self, name: str, n: int) -> Ints:
        # Few ids are seen often and most hardly ever.
        return (self._sizes.features[name] * self._random.random(n) ** 3).astype(np.int64)

    def users(self, n: int) -> dict[str, Ints]:
        """Draws the features of n users."""
        features = {name: self._ids(name, n) for name in self._user_names}
        for name in SEEN:
            ads = self._ids(name, n * self._sizes.seen).reshape(n, -1)
            lengths = self._random.integers(0, self._sizes.seen + 1, n)
            is_ad = np.arange(self._sizes.seen) < lengths[:, None]
            features[name] = np.where(is_ad, ads, -1)
        return features

    def draw_ads(self, n: int) -> Ints:
        """Draws n ads, as positions in the corpus."""
        return self._random.integers(0, self._sizes.ads, n)

    def ad_features(self, positions: Ints) -> dict[str, Ints]:
        """Returns the features of ads."""
        return {name: values[positions] for name, values in self.ads.items()}

    def batch(self, n: int) -> tuple[dict[str, Ints], dict[str, NDArray[np.float32]]]:
        """Draws n impressions, and whether the event of each head followed."""
        features = {**self.users(n), **self.ad_features(self.draw_ads(n))}
        user_count = min(EFFECTIVE, len(self._sizes.user))
        ad_count = min(EFFECTIVE, len(self._sizes.ad))
        users = [effect(features[f"u{number}"], number) for number in range(user_count)]
        ads = [effect(features[f"a{number}"], number + EFFECTIVE) for number in range(ad_count)]
        # Pairs of a user's and an ad's feature have an effect, too: cross layers can find it.
        crossed = sum(user * ad for user, ad in zip(users[:10], ads[:10], strict=False))
        logits = 0.5 * (sum(users) + sum(ads)) + crossed

        labels = {}
        for head, shift in zip(HEADS, (1.5, 0.0), strict=True):
            probabilities = 1 / (1 + np.exp(shift - logits))
            labels[head] = (self._random.random(n) < probabilities).astype(np.float32)
        return features, labels


def write_ads(ads: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Writes the corpus of ads."""
    parquet.write_table(pa.table({name: pa.array(values) for name, values in ads.items()}), path)


def write_inputs(recipe: Path, sizes: Sizes) -> None:
    """Adds to a recipe the corpus of ads and the inputs of the model."""
    lines = [
        "[corpora.ads]",
        'file = "ads.parquet"',
        'id = "ad"',
        "",
        "[corpora.ads.features]",
    ]
    lines += [f'{name} = "{name}"' for name in sizes.ad_names]
    lines += ["", "[inputs]", *(_line(name, sizes) for name in sizes.features)]
    with recipe.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def _line(name: str, sizes: Sizes) -> str:
    shape = ""
    if name in SEEN:
        shape = f", shape = [{sizes.seen}]"
    return f'{name} = {{ dtype = "int64"{shape} }}'


def packed(features: Mapping[str, Any], names: Sequence[str]) -> Ints:
    """Returns all features side by side, [n, columns], as an input pipeline passes them."""
    columns = [np.reshape(features[name], (len(features[name]), -1)) for name in names]
    return np.concatenate(columns, axis=1)
