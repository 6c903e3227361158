"""`python -m benchmarks.soak.id_programs [COUNT] [--first SEED]`: random computations of ids, whose
rows are compared with those that TensorFlow computes.

Prints each program that differs or has no rows, with its seed.
"""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom

from rich.console import Console

COUNT = 10_000
SHOWN_EVERY = 1000
SHOW = Console(highlight=False, soft_wrap=True, markup=False)


def run(first: int, count: int) -> int:
    """Compares programs; returns the exit code."""
    from tests.differential.id_programs import Program
    from tests.differential.test_id_graphs import difference

    failed = 0
    for seed in range(first, first + count):
        problem = difference(Program(seed))
        if problem:
            failed += 1
            SHOW.print(f"program {seed}: {problem}")
        if (seed - first + 1) % SHOWN_EVERY == 0:
            SHOW.print(f"{seed - first + 1} programs of {count}")
    SHOW.print(f"{count} random programs from seed {first}: {failed} differ from TensorFlow")
    return 1 if failed else 0


def main() -> int:
    """Reads the arguments and runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=COUNT)
    parser.add_argument("--first", type=int, help="seed of the first program")
    options = parser.parse_args()
    first = options.first
    if first is None:
        first = SystemRandom().randrange(1 << 31)
    return run(first, options.count)


if __name__ == "__main__":
    sys.exit(main())
