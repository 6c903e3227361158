"""Tables that were trained by sparse updates, stacked over SparseCores by operations on whole
arrays; shares no formula with the code that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div

Values = NDArray[Any]
DIM = 8


@dataclass(frozen=True)
class TrainedTable:
    """A table after training.

    Attributes:
      values: [rows, DIM].
      slots: The optimizer's state, each [rows, DIM], by the suffix that TF1's Saver gives it.
      counts: [rows], how often training read each row.
    """

    values: Values
    slots: dict[str, Values]
    counts: NDArray[np.int64]

    @property
    def trained(self) -> NDArray[np.int64]:
        """The rows that training read, ascending."""
        return np.flatnonzero(self.counts)


OPTIMIZERS: dict[str, dict[str, float]] = {
    "adam": {"Adam": 0.0, "Adam_1": 0.0},
    "adagrad": {"Adagrad": 0.1},
    "ftrl": {"Ftrl": 0.1, "Ftrl_1": 0.0},
    "momentum": {"Momentum": 0.0},
}
"""The slot variables of each optimizer, with their initial values."""


def train(random: np.random.Generator, optimizer: str, counts: NDArray[np.int64]) -> TrainedTable:
    """Trains a table: the slots of rows that are read, and of no others, leave their initial value,
    by the more the more often. The values themselves could be any.
    """
    shape = (len(counts), DIM)
    values = random.standard_normal(shape).astype(np.float32)
    steps = counts[:, np.newaxis]
    slots = {
        name: (value + steps * random.standard_normal(shape) ** 2).astype(np.float32)
        for name, value in OPTIMIZERS[optimizer].items()
    }
    return TrainedTable(values, slots, counts)


def dealt(block: Values, cores: int, rotation: int, fill: float) -> Values:
    """Returns [cores, rows of a core, columns]: a table padded to whole rounds of 8 rows on each
    core, its rows dealt to the cores, and the cores turned.
    """
    missing = -len(block) % (8 * cores)
    padded = np.pad(block, ((0, missing), (0, 0)), constant_values=fill)
    by_core = padded.reshape(-1, cores, block.shape[1]).swapaxes(0, 1)
    return np.roll(by_core, rotation, axis=0)


@dataclass(frozen=True)
class Place:
    """Where a table lies in a stack."""

    cores: int
    core_rows: int
    offset: int
    rotation: int

    def stored_rows(self, rows: int) -> NDArray[np.int64]:
        """Returns the stored row of each row, by dealing the numbers of the rows."""
        numbers = np.arange(1, rows + 1)[:, np.newaxis]
        turned = dealt(numbers, self.cores, self.rotation, 0)[:, :, 0]
        on_core = ceil_div(rows, self.cores)
        variable = np.zeros((self.cores, self.core_rows), np.int64)
        variable[:, self.offset : self.offset + on_core] = turned[:, :on_core]
        flat = variable.ravel()
        stored: NDArray[np.int64] = np.argsort(flat, kind="stable")[-rows:]
        return stored


@dataclass(frozen=True)
class Stack:
    """Tables in one variable.

    Attributes:
      optimizer: The optimizer that trained the tables.
      tables: The tables in the order of the stack.
      places: The places of the tables.
    """

    optimizer: str
    tables: Sequence[TrainedTable]
    places: Sequence[Place]

    @property
    def rows(self) -> int:
        """Stored rows."""
        return self.places[0].cores * self.places[0].core_rows

    def variables(self) -> dict[str, Values]:
        """Returns the variables of a checkpoint, named as TF1's Saver names them."""
        stored = {"stack": self._spread([table.values for table in self.tables], 0.0)}
        for name, value in OPTIMIZERS[self.optimizer].items():
            slots = [table.slots[name] for table in self.tables]
            stored[f"stack/{name}"] = self._spread(slots, value)
        return stored

    def _spread(self, blocks: Sequence[Values], fill: float) -> Values:
        by_core = [
            dealt(block, place.cores, place.rotation, fill)
            for block, place in zip(blocks, self.places, strict=True)
        ]
        return np.concatenate(by_core, axis=1).reshape(-1, DIM)


def packed(rows: Sequence[int], cores: int, rotations: Sequence[int]) -> list[Place]:
    """Returns the places of tables, one behind the other on each core."""
    sizes = [ceil_div(count, 8 * cores) * 8 for count in rows]
    offsets = np.cumsum([0, *sizes]).tolist()
    return [
        Place(cores, offsets[-1], offset, rotation)
        for offset, rotation in zip(offsets[:-1], rotations, strict=True)
    ]


def draw_stack(random: np.random.Generator, optimizer: str) -> Stack:
    """Draws tables of which training read some rows, and stacks them."""
    cores = int(random.choice([2, 4, 8, 16, 32]))
    rows = random.integers(40, 600, int(random.integers(1, 4))).tolist()
    tables = []
    for count in rows:
        is_read = random.random(count) < random.uniform(0.1, 0.7)
        counts = np.where(is_read, random.zipf(1.8, count).clip(1, 12), 0)
        tables.append(train(random, optimizer, counts))
    device_cores = int(random.choice([1, 2, 4]))
    rotations = [number * device_cores % cores for number in range(len(rows))]
    return Stack(optimizer, tables, packed(rows, cores, rotations))


Statement = list[Place]
"""What a user states of a stack: a place for each table."""


def wrong_cores(random: np.random.Generator, stack: Stack) -> Statement:
    """Spreads the tables over another number of cores."""
    rows = [len(table.values) for table in stack.tables]
    right = stack.places[0].cores
    for cores in random.permutation([1, 2, 4, 8, 16, 32, 64]).tolist():
        if cores == right:
            continue
        rotations = [place.rotation % cores for place in stack.places]
        places = packed(rows, cores, rotations)
        core_rows = stack.rows // cores
        if stack.rows % cores == 0 and places[0].core_rows <= core_rows:
            return [replace(place, core_rows=core_rows) for place in places]
    return list(stack.places)


def wrong_rotation(random: np.random.Generator, stack: Stack) -> Statement:
    """Turns one table."""
    places = list(stack.places)
    number = int(random.integers(len(places)))
    place = places[number]
    turn = int(random.integers(1, place.cores))
    places[number] = replace(place, rotation=(place.rotation + turn) % place.cores)
    return places


def wrong_offset(random: np.random.Generator, stack: Stack) -> Statement:
    """Moves one table, as far as there is padding behind it."""
    places = list(stack.places)
    number = int(random.integers(len(places)))
    place = places[number]
    ends = [other.offset for other in places if other.offset > place.offset]
    end = min([*ends, place.core_rows])
    room = end - place.offset - ceil_div(len(stack.tables[number].values), place.cores)
    if room:
        moved = place.offset + int(random.integers(1, room + 1))
        places[number] = replace(place, offset=moved)
    return places


def exchanged(random: np.random.Generator, stack: Stack) -> Statement:
    """Stacks the tables in another order."""
    order = random.permutation(len(stack.tables)).tolist()
    rows = [len(stack.tables[number].values) for number in order]
    rotations = [stack.places[number].rotation for number in order]
    places = packed(rows, stack.places[0].cores, rotations)
    return [places[order.index(number)] for number in range(len(order))]


def in_order(_random: np.random.Generator, stack: Stack) -> Statement:
    """Takes the rows of each core for the rows of a table: `div`."""
    rows = [len(table.values) for table in stack.tables]
    sizes = [ceil_div(count, 8 * stack.places[0].cores) * 8 for count in rows]
    offsets = np.cumsum([0, *sizes]) * stack.places[0].cores
    return [Place(1, stack.rows, offset, 0) for offset in offsets[:-1].tolist()]


WRONG: dict[str, Callable[[np.random.Generator, Stack], Statement]] = {
    "cores": wrong_cores,
    "rotation": wrong_rotation,
    "offset": wrong_offset,
    "exchanged tables": exchanged,
    "div": in_order,
}
"""Wrong statements by what is wrong; some are right by chance."""


def is_right(stack: Stack, statement: Statement) -> bool:
    """Returns whether a statement places every row of every table where it is."""
    return all(
        np.array_equal(layout.stored_rows(len(table.values)), place.stored_rows(len(table.values)))
        for layout, place, table in zip(statement, stack.places, stack.tables, strict=True)
    )
