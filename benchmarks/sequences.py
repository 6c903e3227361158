"""`make bench-sequences`: what a ranking of candidates behind a history costs, by HTTP.

A causal transformer in Flax is exported twice, whole and in parts, and served by three processes in
turn: whole, in parts, and in parts with stored states, for which each history has four events more
than the one before. Beside them, the model itself runs compiled by JAX. What counts is CPU time: of
all processes of a service, and of this process for JAX.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import jax
import numpy as np
import orbax.checkpoint as ocp
import orjson
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import cores
from benchmarks.report import Sheet
from benchmarks.sequence_model import ITEMS, Ranker, build, initial
from benchmarks.services import Checkout, Service

NEW_EVENTS = 4
"""The events by which a history grows between two requests."""
TIMEOUT_S = 600.0
DIFFERENCE_MAX = 1e-4
"""The largest difference of a score from JAX's."""
PEAK_SIZE = 2048
"""The size of the matrices whose product shows what the machine can do."""
RECIPE = """\
model = "sequences"
[checkpoint]
path = "checkpoint"
[code]
factory = "{file}:build"
arguments = {{ history = {history}, width = {width}, layers = {layers}, heads = {heads} }}
[towers.ranking]
role = "ranking"
call = "rank"
split = {split}
[features.item]
role = "candidate"
[inputs]
history = {{ dtype = "int32", shape = [{history}], pad = 0 }}
item = {{ dtype = "int32" }}
[verify]
examples = "examples.jsonl"
[output]
root = "{root}"
"""

History = NDArray[np.int64]
Send = Callable[[History, History], NDArray[np.float64]]
"""(histories, items) -> scores."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and of the measurement.

    Attributes:
      history, width, layers, heads: Those of the model.
      candidates: The number of candidates of a ranking.
      rounds: How often each way is measured.
      rankings: The number of rankings in a round, of the whole model one.
    """

    history: int
    width: int
    layers: int
    heads: int
    candidates: int
    rounds: int
    rankings: int

    @property
    def of_position(self) -> float:
        """The multiply-adds of a position of the sequence, without attention, times layers."""
        return float(self.layers * 12 * self.width**2)

    def gflop(self, positions: int) -> float:
        """Returns the operations for so many positions that each see all events, in 10^9."""
        attention = self.layers * 2 * self.width * self.history
        return 2e-9 * positions * (self.of_position + attention)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 2 if histories have no room to grow."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sequences", description=__doc__.partition("\n\n")[0]
    )
    defaults = {"history": 512, "width": 128, "layers": 2, "heads": 8, "candidates": 200}
    for name, value in (defaults | {"rounds": 5, "rankings": 20}).items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    sizes = Sizes(**vars(parser.parse_args(arguments)))
    if NEW_EVENTS * sizes.rankings > sizes.history // 2:
        sys.stderr.write(f"--rankings {sizes.rankings} need a history of more events\n")
        return 2
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as folder:
        sheet = measure(sizes, Path(folder), console)
    console.print(f"{cores.host()}; of matrices here at most {peak_gflops():.0f} GFLOP/s")
    sheet.show(console)
    return 0


def measure(sizes: Sizes, folder: Path, console: Console) -> Sheet:
    """Exports the model, serves it, and measures all ways in turn."""
    ranker = Ranker(sizes.history, sizes.width, sizes.layers, sizes.heads)
    parameters = initial(ranker)
    write_inputs(sizes, folder, parameters)
    for root, is_split in (("whole", False), ("parts", True)):
        console.print(f"exporting: {root}")
        export(sizes, folder, root, is_split)
    _, towers = build(sizes.history, sizes.width, sizes.layers, sizes.heads)
    compiled = jax.jit(towers["rank"])

    def by_jax(history: History, items: History) -> NDArray[np.float64]:
        inputs = {"history": np.repeat(history[None], items.size, 0), "item": items}
        return np.asarray(compiled(parameters, inputs)["score"], np.float64)

    with ExitStack() as stack:
        ways: dict[str, tuple[Send, Callable[[], float], int]] = {}
        for name, root, options in (
            ("whole", "whole", ()),
            ("in parts", "parts", ()),
            ("stored states", "parts", ("--context-states", str(folder / "states"))),
        ):
            checkout = Checkout(name.replace(" ", "-"))
            patience = ("--request-timeout-s", str(TIMEOUT_S))
            service = Service(checkout, folder / root, folder, "f32", *patience, *options)
            stack.callback(service.close)
            client = httpx.Client(base_url=f"http://127.0.0.1:{service.http}", timeout=TIMEOUT_S)
            stack.callback(client.close)
            count = 1 if name == "whole" else sizes.rankings
            ways[name] = sender(client), service.cpu_s, count
        ways["model, jax.jit"] = by_jax, time.process_time, 1
        costs = measured(sizes, ways, by_jax, console)
    return table(sizes, costs)


def write_inputs(sizes: Sizes, folder: Path, parameters: Any) -> None:
    """Writes the checkpoint and the examples of the recipes."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((folder / "checkpoint").resolve(), parameters)
    random = np.random.default_rng(0)
    lines = []
    for _ in range(12):
        history = random.integers(1, ITEMS, random.integers(sizes.history // 4, sizes.history))
        example = {"history": history.tolist(), "item": int(random.integers(1, ITEMS))}
        lines.append(orjson.dumps(example))
    (folder / "examples.jsonl").write_bytes(b"\n".join(lines))


def export(sizes: Sizes, folder: Path, root: str, is_split: bool) -> None:
    """Exports the model as a bundle of a root."""
    recipe = folder / f"{root}.toml"
    recipe.write_text(
        RECIPE.format(
            file=Path(__file__).with_name("sequence_model.py"),
            root=root,
            split=str(is_split).lower(),
            **vars(sizes),
        )
    )
    program = Path(sys.executable).with_name("rowcast-export")
    subprocess.run([program, "run", recipe], check=True, stdout=subprocess.DEVNULL)


def sender(client: httpx.Client) -> Send:
    """Returns what ranks by a service."""

    def send(history: History, items: History) -> NDArray[np.float64]:
        body = {
            "context": {"history": history.tolist()},
            "candidate_features": {"item": items.tolist()},
        }
        response = client.post("/v1/models/sequences:rank", content=orjson.dumps(body))
        response.raise_for_status()
        return np.array(response.json()["scores"])

    return send


def measured(
    sizes: Sizes,
    ways: Mapping[str, tuple[Send, Callable[[], float], int]],
    by_jax: Send,
    console: Console,
) -> dict[str, float]:
    """Returns the CPU seconds of a ranking by each way, the median of all rounds.

    Raises:
      RuntimeError: A score differs from that of the model.
    """
    random = np.random.default_rng(1)
    history = np.zeros(sizes.history, np.int64)
    events = sizes.history // 2
    history[:events] = random.integers(1, ITEMS, events)
    items = random.integers(1, ITEMS, sizes.candidates)
    expected = by_jax(history, items)
    for name, (send, _, _) in ways.items():
        if send is by_jax:
            continue
        difference = np.abs(send(history[:events], items) - expected).max()
        if difference > DIFFERENCE_MAX:
            raise RuntimeError(f"{name}: a score differs by {difference:.3g} from that of JAX")
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(sizes.rounds):
        for name, (send, cpu_s, count) in ways.items():
            shown = events
            history[events:] = 0
            # What was sent before is written beside the requests.
            time.sleep(0.2)
            before = cpu_s()
            for _ in range(count):
                history[shown : shown + NEW_EVENTS] = random.integers(1, ITEMS, NEW_EVENTS)
                shown += NEW_EVENTS
                send(history if send is by_jax else history[:shown], items)
            costs[name].append((cpu_s() - before) / count)
        console.print(f"round {number + 1} of {sizes.rounds}")
    return {name: median(each) for name, each in costs.items()}


def table(sizes: Sizes, costs: Mapping[str, float]) -> Sheet:
    """Returns the costs of a ranking, beside the operations that the arithmetic needs."""
    positions = {
        "whole": sizes.candidates * (sizes.history + 1),
        "in parts": sizes.history + sizes.candidates,
        "stored states": NEW_EVENTS + sizes.candidates,
        "model, jax.jit": sizes.candidates * (sizes.history + 1),
    }
    rows = []
    for name, seconds in costs.items():
        gflop = sizes.gflop(positions[name])
        rows.append(
            (
                name,
                f"{1e3 * seconds:.1f}",
                f"{seconds / costs['whole']:.4f}",
                f"{sizes.candidates / seconds:,.0f}",
                f"{gflop:.2f}",
                f"{gflop / seconds:.0f}",
            )
        )
    title = (
        f"ranking {sizes.candidates} candidates, history {sizes.history}, width {sizes.width}, "
        f"{sizes.layers} layers, LiteRT f32"
    )
    columns = ("way", "CPU ms", "by whole", "candidates/s and core", "GFLOP", "GFLOP/s")
    return Sheet(title, columns, rows)


def peak_gflops() -> float:
    """Returns the operations of a large product of matrices per CPU second, in 10^9."""
    matrix = np.ones((PEAK_SIZE, PEAK_SIZE), np.float32)
    rates = []
    for _ in range(5):
        before = time.process_time()
        matrix @ matrix
        rates.append(2e-9 * PEAK_SIZE**3 / (time.process_time() - before))
    return max(rates)


if __name__ == "__main__":
    sys.exit(main())
