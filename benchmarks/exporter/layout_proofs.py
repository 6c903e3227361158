"""`python -m benchmarks.exporter.layout_proofs`: wrong layouts that ids of training contradict, and
right ones that they prove, over random stacks and four optimizers.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console

from benchmarks.report import Sheet
from export.checkpoint.layouts import stored_rows
from export.errors import NotConvertible
from tests.laws.stated_stacks import recognized
from tests.laws.trained_stacks import (
    OPTIMIZERS,
    WRONG,
    Stack,
    Statement,
    draw_stack,
    is_right,
)
from tests.units.export.checkpoint.tensor_bundles import write_bundle

RIGHT = "right, stated"
DERIVED = "right, derived"


def main() -> None:
    """Draws stacks until `--wrong` wrong statements are drawn; prints what became of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exporter.layout_proofs")
    parser.add_argument(
        "--wrong", type=int, default=10_000, help="number of wrong statements (default 10,000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first stack (default 0)")
    arguments = parser.parse_args()
    drawn: Counter[tuple[str, str]] = Counter()
    rejected: Counter[tuple[str, str]] = Counter()
    begun = time.perf_counter()
    proofs = 0
    seed = arguments.seed
    while sum(drawn[kind, name] for kind in WRONG for name in OPTIMIZERS) < arguments.wrong:
        optimizer = list(OPTIMIZERS)[seed % len(OPTIMIZERS)]
        random = np.random.default_rng(seed)
        seed += 1
        stack = draw_stack(random, optimizer)
        with TemporaryDirectory() as directory:
            checkpoint = Path(directory)
            write_bundle(checkpoint / "ckpt", stack.variables())
            statements: list[tuple[str, Statement | None]] = [(DERIVED, None)]
            statements.append((RIGHT, list(stack.places)))
            statements += [(kind, draw(random, stack)) for kind, draw in WRONG.items()]
            for kind, statement in statements:
                if kind in WRONG and statement is not None and is_right(stack, statement):
                    continue
                proofs += 1
                drawn[kind, optimizer] += 1
                rejected[kind, optimizer] += _is_rejected(checkpoint, stack, statement)
    seconds = time.perf_counter() - begun
    rows = [
        [kind, *(f"{rejected[kind, name]} of {drawn[kind, name]}" for name in OPTIMIZERS)]
        for kind in (DERIVED, RIGHT, *WRONG)
    ]
    title = f"rejected, of {seed - arguments.seed} stacks; {1000 * seconds / proofs:.0f} ms each"
    Sheet(title, ("statement", *OPTIMIZERS), rows).show(Console(width=120, highlight=False))


def _is_rejected(checkpoint: Path, stack: Stack, statement: Statement | None) -> bool:
    """Returns whether the data contradicts a statement; a derived layout must be the right one."""
    try:
        tables = recognized(checkpoint, stack, statement).tables
    except NotConvertible:
        return True
    for table, trained, table_place in zip(tables, stack.tables, stack.places, strict=True):
        rows = np.arange(len(trained.values))
        is_same = np.array_equal(
            stored_rows(table.layout, rows), table_place.stored_rows(len(rows))
        )
        if statement is None and not is_same:
            raise AssertionError(f"derived {table.layout}, and the table lies at {table_place}")
    return False


if __name__ == "__main__":
    main()
