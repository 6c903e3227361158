"""`python -m benchmarks.soak.random_models [COUNT] [--first SEED]`: exports random models, serves
them and compares what is served with what their frameworks give.

Prints each model that fails, and how many were published and rejected, by framework and reason.
Some seeds share a child, so that a crash of a native library is reported with the seeds that caused
it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from rich.console import Console

COUNT = 2000
SEEDS_OF_A_CHILD = 100
"""Of which the first takes some seconds, in which TensorFlow and JAX are imported."""
PUBLISHED_MIN = 0.95
"""Share of the models that are not known to differ. Most of what is drawn is what
docs/reference/models.md lists, so that a rejection is an exception.
"""
SHOWN_SEEDS = 5
SHOW = Console(highlight=False, soft_wrap=True, markup=False)


@dataclass(frozen=True)
class Result:
    """How the trial of a seed ended: published, rejected, known or failed, and the message."""

    seed: int
    library: str
    kind: str
    text: str = ""


def try_seeds(first: int, count: int) -> list[Result]:
    """Tries some models one after the other, in a child."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    from tests.differential.random_models.models import draw_model

    _silence()
    results = []
    for seed in range(first, first + count):
        model = draw_model(seed)
        result = _result(seed, model.library)
        if model.known and result.kind != "published":
            result = Result(seed, model.library, "known", model.known)
        results.append(result)
    return results


def _result(seed: int, library: str) -> Result:
    from tests.differential.random_models.trials import trial

    with tempfile.TemporaryDirectory() as directory:
        try:
            rejection = trial(seed, Path(directory)).rejection
        except Exception:  # noqa: BLE001 - any is a failure of the export
            return Result(seed, library, "failed", traceback.format_exc())
    return Result(seed, library, "rejected" if rejection else "published", rejection)


def _silence() -> None:
    """Lets the frameworks say nothing, in Python or from their native code."""
    warnings.simplefilter("ignore")
    from export.graphs.loading import load_tensorflow

    load_tensorflow().get_logger().setLevel("ERROR")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def run(first: int, count: int) -> int:
    """Tries models in children; returns the exit status."""
    results: list[Result] = []
    crashes = 0
    for start in range(first, first + count, SEEDS_OF_A_CHILD):
        size = min(SEEDS_OF_A_CHILD, first + count - start)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
            try:
                results += child.submit(try_seeds, start, size).result()
            except BrokenProcessPool:
                crashes += 1
                SHOW.print(f"seeds {start} to {start + size - 1}: their process crashed")
        for result in results[-size:]:
            if result.kind == "failed":
                SHOW.print(f"seed {result.seed}, {result.library}:\n{result.text}")
        SHOW.print(f"{len(results)} models of {count}")
    by_kind = _grouped({result.seed: result.kind for result in results})
    for kind in ("rejected", "known"):
        _show_reasons(kind, [result for result in results if result.kind == kind])
    libraries = {result.seed: f"{result.kind} {result.library}" for result in results}
    for name, seeds in sorted(_grouped(libraries).items()):
        SHOW.print(f"{len(seeds):6d}  {name}")
    counts = {kind: len(seeds) for kind, seeds in by_kind.items()}
    published = counts.get("published", 0)
    share = published / max(1, len(results) - counts.get("known", 0))
    failed = counts.get("failed", 0) + crashes
    SHOW.print(
        f"{count} random models from seed {first}: {published} published, "
        f"{counts.get('rejected', 0)} rejected, {counts.get('known', 0)} known to differ, "
        f"{failed} failed; {share:.1%} of the others published, at least {PUBLISHED_MIN:.0%} "
        "expected"
    )
    return 1 if failed or share < PUBLISHED_MIN else 0


def _grouped(names: Mapping[int, str]) -> dict[str, list[int]]:
    """Returns the seeds of each name."""
    seeds = defaultdict(list)
    for seed, name in names.items():
        seeds[name].append(seed)
    return seeds


def _show_reasons(kind: str, results: Sequence[Result]) -> None:
    """Shows how often each reason occurs, whatever names and numbers it holds, and some seeds."""
    reasons = {result.seed: _reason(result.text) for result in results}
    groups = _grouped(reasons)
    for reason in sorted(groups, key=lambda name: -len(groups[name])):
        seeds = ", ".join(map(str, groups[reason][:SHOWN_SEEDS]))
        SHOW.print(f"{len(groups[reason]):6d}  {kind}: {reason} (seeds {seeds})")


def _reason(text: str) -> str:
    """Returns the beginning of a message without what differs from model to model."""
    return re.sub(r"'[^']*'|-?\d+", "…", " ".join(text.split()))[:160]


def main() -> int:
    """Returns the exit status: 1 if a response differs, or too few models are published."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=COUNT, help="models; default 2000")
    parser.add_argument("--first", type=int, help="seed of the first; default: a random one")
    options = parser.parse_args()
    first = options.first
    if first is None:
        first = SystemRandom().randrange(1 << 31)  # NumPy takes seeds of 32 bits
    return run(first, options.count)


if __name__ == "__main__":
    sys.exit(main())
