"""Tables that were trained by sparse updates, stacked over SparseCores by operations on whole
arrays; shares no formula with the code that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
DIM = 8


@dataclass(frozen=True)
class TrainedTable:
    """A table after training.

    Attributes:
      values: [rows, DIM].
      slots: the optimizer's state, each [rows, DIM], by the suffix that TF1's Saver gives it.
      counts: [rows], how often training read each row.
    """

    values: Values
    slots: dict[str, Values]
    counts: NDArray[np.int64]

    @property
    def trained(self) -> NDArray[np.int64]:
        """The rows that training read, ascending."""
        return np.flatnonzero(self.counts)


Gradients = Callable[[], Values]


def adam(
    values: Values, rows: NDArray[np.int64], gradients: Values, slots: dict[str, Values]
) -> None:
    first = slots["Adam"]
    second = slots["Adam_1"]
    first[rows] = 0.9 * first[rows] + 0.1 * gradients
    second[rows] = 0.999 * second[rows] + 0.001 * gradients**2
    values[rows] -= 0.01 * first[rows] / (np.sqrt(second[rows]) + 1e-8)


def adagrad(
    values: Values, rows: NDArray[np.int64], gradients: Values, slots: dict[str, Values]
) -> None:
    slots["Adagrad"][rows] += gradients**2
    values[rows] -= 0.1 * gradients / np.sqrt(slots["Adagrad"][rows])


def ftrl(
    values: Values, rows: NDArray[np.int64], gradients: Values, slots: dict[str, Values]
) -> None:
    before = slots["Ftrl"][rows]
    after = before + gradients**2
    sigma = (np.sqrt(after) - np.sqrt(before)) / 0.1
    slots["Ftrl_1"][rows] += gradients - sigma * values[rows]
    slots["Ftrl"][rows] = after
    values[rows] = -slots["Ftrl_1"][rows] * 0.1 / np.sqrt(after)


def momentum(
    values: Values, rows: NDArray[np.int64], gradients: Values, slots: dict[str, Values]
) -> None:
    slots["Momentum"][rows] = 0.9 * slots["Momentum"][rows] + gradients
    values[rows] -= 0.01 * slots["Momentum"][rows]


OPTIMIZERS: dict[str, tuple[Callable[..., None], dict[str, float]]] = {
    "adam": (adam, {"Adam": 0.0, "Adam_1": 0.0}),
    "adagrad": (adagrad, {"Adagrad": 0.1}),
    "ftrl": (ftrl, {"Ftrl": 0.1, "Ftrl_1": 0.0}),
    "momentum": (momentum, {"Momentum": 0.0}),
}
"""Updates, and the slot variables with their initial values."""


def train(random: np.random.Generator, optimizer: str, counts: NDArray[np.int64]) -> TrainedTable:
    """Trains a table: row r is read counts[r] times, in any order."""
    update, initial = OPTIMIZERS[optimizer]
    shape = (len(counts), DIM)
    values = random.standard_normal(shape).astype(np.float32)
    slots = {name: np.full(shape, value, np.float32) for name, value in initial.items()}
    for step in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > step)
        gradients = random.standard_normal((len(rows), DIM)).astype(np.float32)
        update(values, rows, gradients, slots)
    return TrainedTable(values, slots, counts)


def spread(blocks: Sequence[Values], cores: int, rotations: Sequence[int], fill: float) -> Values:
    """Stacks tables: each is padded to whole rounds of 8 rows on each core, its rows are dealt to
    the cores, and the cores turned.
    """
    dealt = []
    for block, rotation in zip(blocks, rotations, strict=True):
        missing = -len(block) % (8 * cores)
        padded = np.pad(block, ((0, missing), (0, 0)), constant_values=fill)
        by_core = padded.reshape(-1, cores, DIM).swapaxes(0, 1)
        dealt.append(np.roll(by_core, rotation, axis=0))
    return np.concatenate(dealt, axis=1).reshape(-1, DIM)


def stack(
    tables: Sequence[TrainedTable], optimizer: str, cores: int, rotations: Sequence[int]
) -> dict[str, Values]:
    """Returns the variables of a checkpoint that holds the tables as one stack."""
    _, initial = OPTIMIZERS[optimizer]
    variables = {"stack": spread([table.values for table in tables], cores, rotations, 0.0)}
    for name, value in initial.items():
        slots = [table.slots[name] for table in tables]
        variables[f"stack/{name}"] = spread(slots, cores, rotations, value)
    return variables
