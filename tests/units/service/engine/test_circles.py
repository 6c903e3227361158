"""Circles on the earth hold the candidates that vectors from its center say: at poles, across the
date line, of any radius.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.contract.messages import Circle, Filter
from service.engine.filters import compile_filter
from service.versions.version import LoadedIndex
from tests.random_cases import seeds
from tests.units.service.engine.retrieval.large_index import load_index

SIZE = 3000
EARTH_RADIUS_M = 6_371_008.8
TREE = {"num_leaves": 10, "leaves_to_search": 5, "dimensions_per_block": 2, "reorder": 30}


def directions(latitudes: Any, longitudes: Any) -> NDArray[np.float64]:
    """Returns vectors of length 1 from the center of the earth, [n, 3]."""
    north = np.radians(latitudes)
    east = np.radians(longitudes)
    return np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], -1)


@pytest.fixture(scope="module")
def places() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Latitudes and longitudes: anywhere, at the ends of both, and in one city."""
    random = np.random.default_rng(1)
    latitudes = random.uniform(-90, 90, SIZE)
    longitudes = random.uniform(-180, 180, SIZE)
    latitudes[:30] = np.repeat([-90, 0, 90], 10)
    longitudes[:40] = np.tile([-180, 0, 180, 179.9999], 10)
    latitudes[-500:] = random.normal(52.5, 0.1, 500).round(2)
    longitudes[-500:] = random.normal(13.4, 0.1, 500).round(2)
    # Some have one of both, or none.
    latitudes[100:110] = np.nan
    longitudes[105:120] = np.nan
    return latitudes, longitudes


@pytest.fixture(scope="module")
def index(
    tmp_path_factory: pytest.TempPathFactory,
    places: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> LoadedIndex:
    vectors = np.random.default_rng(2).normal(size=(SIZE, 4)).astype(np.float32)
    place: Path = tmp_path_factory.mktemp("circles")
    names = {"latitude": places[0], "longitude": places[1]}
    return load_index(place, vectors, names, parameters=TREE)


def test_circle_holds_what_lies_within_its_radius(
    index: LoadedIndex,
    places: tuple[NDArray[np.float64], NDArray[np.float64]],
    request: pytest.FixtureRequest,
) -> None:
    candidates = directions(*places)
    for position in range(20):
        center = Circle(float(places[0][position]), float(places[1][position]), 0.0)
        found = compile_filter(index, Filter(near=(center,)), int)
        assert position in found.matches.positions.tolist()
    for seed in seeds(request, 200, first=0):
        random = Random(seed)
        latitude = random.choice([random.uniform(-90, 90), random.choice([-90, 0, 52.5, 90])])
        longitude = random.choice([random.uniform(-180, 180), random.choice([-180, 13.4, 180])])
        radius_m = random.choice([0.0, 10 ** random.uniform(2, 7.4)])
        found = compile_filter(index, Filter(near=(Circle(latitude, longitude, radius_m),)), int)
        chords = np.linalg.norm(candidates - directions(latitude, longitude), axis=1)
        distances = 2 * EARTH_RADIUS_M * np.arcsin(np.minimum(chords / 2, 1))
        is_found = np.zeros(SIZE, bool)
        is_found[found.matches.positions] = True
        # Rounding decides within a centimeter of the edge; what has no place is in no circle.
        is_clear = ~(np.abs(distances - radius_m) < 0.01)
        expected = distances <= min(radius_m, math.pi * EARTH_RADIUS_M)
        np.testing.assert_array_equal(is_found[is_clear], expected[is_clear], f"seed {seed}")
