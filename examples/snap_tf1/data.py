"""Users, ads and what came of showing them: thousands of categories, some of which tell how a user
takes an ad.
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

TELLING = 40
"""Features of a user, and of an ad, that have an effect; the others are noise to the model."""


class Impressions:
    """Draws users and shows them ads; the same seed draws the same ones."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        """Makes the ads."""
        self._sizes = sizes
        self._random = np.random.default_rng(seed)
        self._of_users = tuple(name for name in sizes.features if name not in sizes.of_ads)
        self.ads = {name: self._ids(name, sizes.ads) for name in sizes.of_ads}
        self.ads["ad"] = np.arange(sizes.ads)

    def _ids(self, name: str, n: int) -> Ints:
        return (self._sizes.features[name] * self._random.random(n) ** 3).astype(np.int64)

    def users(self, n: int) -> dict[str, Ints]:
        """Draws what is known of n users."""
        found = {name: self._ids(name, n) for name in self._of_users}
        for name in SEEN:
            ads = self._ids(name, n * self._sizes.seen).reshape(n, -1)
            lengths = self._random.integers(0, self._sizes.seen + 1, n)
            found[name] = np.where(np.arange(self._sizes.seen) < lengths[:, None], ads, -1)
        return found

    def shown(self, n: int) -> Ints:
        """Draws ads, as positions."""
        return self._random.integers(0, self._sizes.ads, n)

    def of_ads(self, positions: Ints) -> dict[str, Ints]:
        """Returns what is known of ads."""
        return {name: values[positions] for name, values in self.ads.items()}

    def batch(self, n: int) -> tuple[dict[str, Ints], dict[str, NDArray[np.float32]]]:
        """Draws n impressions and whether each head's event came."""
        features = {**self.users(n), **self.of_ads(self.shown(n))}
        users = [
            effect(features[f"u{place}"], place)
            for place in range(min(TELLING, len(self._sizes.user)))
        ]
        ads = [
            effect(features[f"a{place}"], place + TELLING)
            for place in range(min(TELLING, len(self._sizes.ad)))
        ]
        crossed = sum(user * ad for user, ad in zip(users[:10], ads[:10], strict=False))
        logits = 0.5 * (sum(users) + sum(ads)) + crossed
        chances = {
            head: 1 / (1 + np.exp(shift - logits))
            for head, shift in zip(HEADS, (1.5, 0.0), strict=True)
        }
        return features, {
            head: (self._random.random(n) < chance).astype(np.float32)
            for head, chance in chances.items()
        }


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
    lines += [f'{name} = "{name}"' for name in sizes.of_ads]
    lines += ["", "[inputs]", *(_line(name, sizes) for name in sizes.features)]
    with recipe.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def _line(name: str, sizes: Sizes) -> str:
    return f'{name} = {{ dtype = "int64"{f", shape = [{sizes.seen}]" if name in SEEN else ""} }}'


def packed(features: Mapping[str, Any], names: Sequence[str]) -> Ints:
    """Returns [n, columns] all features side by side, as an input pipeline hands them over."""
    return np.concatenate(
        [np.reshape(features[name], (len(features[name]), -1)) for name in names], axis=1
    )
