"""How shards and replicas divide a number of nodes, what that costs a request, and what lost nodes cost.

    python -m examples.cluster_size --table-bytes 10e12 --nodes 32 --memory-bytes 768e9

`docs/how-to/size-a-cluster.md` shows what it prints.
"""

from __future__ import annotations

import argparse
from math import comb

SHARD_CALL_MS, SHARD_ROW_US = 0.6, 0.20
FRONT_CALL_MS, FRONT_ROW_US = 0.4, 0.16
"""CPU time of a call and of a row of 64 bytes, on a shard and on a front: lookups of 8 and of 4,000 rows at four
callers, by a front with one and with four shards, less those of one process, on two cores that all of them share."""
PULL_BYTES_S = 1e9
"""Of a node that takes over a shard: a network of 10 Gbit/s."""


def lost_share(shards: int, replicas: int, failed: int) -> float:
    """Returns how likely so many nodes, failing at once, hold all replicas of a shard: one pod on each node."""
    nodes = shards * replicas
    ways = sum(
        (1 if each % 2 else -1)
        * comb(shards, each)
        * comb(nodes - each * replicas, failed - each * replicas)
        for each in range(1, failed // replicas + 1)
    )
    return ways / comb(nodes, failed)


def rows_of(
    table_bytes: float, nodes: int, memory_bytes: float, cores: int, rows: int
) -> list[list[str]]:
    """Returns a row of the table for each way to divide the nodes, fewest shards first."""
    found = []
    for shards in (each for each in range(1, nodes + 1) if nodes % each == 0):
        replicas, held = nodes // shards, table_bytes / shards
        shard_ms = shards * SHARD_CALL_MS + rows * SHARD_ROW_US / 1e3
        front_ms = shards * FRONT_CALL_MS + rows * FRONT_ROW_US / 1e3
        cells = [f"{shards} x {replicas}", f"{held / 1e9:,.0f} GB", f"{held / memory_bytes:.0%}"]
        cells += [
            f"{front_ms:.1f} ms",
            f"{nodes * cores * 1e3 / shard_ms:,.0f}",
            f"{held / PULL_BYTES_S / 60:.0f} min",
        ]
        found.append(
            [*cells, *(f"{lost_share(shards, replicas, failed):.1%}" for failed in (1, 2, 3))]
        )
    return found


def main() -> None:
    """Prints the table as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("table-bytes", 10e12),
        ("nodes", 32),
        ("memory-bytes", 768e9),
        ("cores", 32),
    ):
        parser.add_argument(f"--{name}", type=float if default > 1e6 else int, default=default)
    parser.add_argument("--rows", type=int, default=5_200, help="of a request, over all tables")
    print(
        "| shards x replicas | a node holds | of its memory | CPU of a front | requests/s | refill |",
        end="",
    )
    print(" a shard is lost with 1 node | 2 | 3 |\n|---|---|---|---|---|---|---|---|---|")
    for cells in rows_of(**vars(parser.parse_args())):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
