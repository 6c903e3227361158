"""Compares divisions of nodes into shards and replicas: the cost of a request, and the probability
that failing nodes lose a shard.

    python -m examples.cluster_size --table-bytes 10e12 --nodes 32 --memory-bytes 768e9

`docs/how-to/size-a-cluster.md` shows the output.
"""

from __future__ import annotations

import argparse
from math import comb

# CPU time per call and per row of 64 bytes. Measured with lookups of 8 and of 4,000 rows by four
# clients: a router with one and with four shards, minus the same lookups in one process, on two
# cores that all processes share.
SHARD_CALL_MS = 0.6
SHARD_ROW_US = 0.20
ROUTER_CALL_MS = 0.4
ROUTER_ROW_US = 0.16
PULL_BYTES_S = 1e9
"""Rate at which a node downloads a shard, over a network of 10 Gbit/s."""


def lost_share(shards: int, replicas: int, failed: int) -> float:
    """Returns the probability that nodes that fail at the same time hold all replicas of a shard.

    Args:
      shards: Number of shards.
      replicas: Number of replicas of each shard, each on a node of its own.
      failed: Number of nodes that fail.
    """
    nodes = shards * replicas
    # Inclusion and exclusion over the shards that are lost: the sets of failed nodes that hold all
    # replicas of at least one shard.
    failures = 0
    for lost in range(1, failed // replicas + 1):
        further_failed = failed - lost * replicas
        sets = comb(shards, lost) * comb(nodes - lost * replicas, further_failed)
        sign = 1 if lost % 2 else -1
        failures += sign * sets
    return failures / comb(nodes, failed)


def rows_of(
    table_bytes: float, nodes: int, memory_bytes: float, cores: int, rows: int
) -> list[list[str]]:
    """Returns a row of the table for each way to divide the nodes, the fewest shards first."""
    choices = []
    for shards in range(1, nodes + 1):
        # Every shard has the same number of replicas.
        if nodes % shards:
            continue
        replicas = nodes // shards
        shard_bytes = table_bytes / shards
        # A request calls every shard, whatever the number of its rows.
        shard_ms = shards * SHARD_CALL_MS + rows * SHARD_ROW_US / 1e3
        router_ms = shards * ROUTER_CALL_MS + rows * ROUTER_ROW_US / 1e3
        requests_per_s = nodes * cores * 1e3 / shard_ms
        refill_min = shard_bytes / PULL_BYTES_S / 60
        cells = [
            f"{shards} x {replicas}",
            f"{shard_bytes / 1e9:,.0f} GB",
            f"{shard_bytes / memory_bytes:.0%}",
            f"{router_ms:.1f} ms",
            f"{requests_per_s:,.0f}",
            f"{refill_min:.0f} min",
        ]
        cells += [f"{lost_share(shards, replicas, failed):.1%}" for failed in (1, 2, 3)]
        choices.append(cells)
    return choices


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
        # Bytes may be written as 10e12.
        kind = float if default > 1e6 else int
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument(
        "--rows", type=int, default=5_200, help="rows that a request reads, over all tables"
    )
    print(
        "| shards x replicas | data per node | share of its memory | router CPU | requests/s "
        "| refill | shard lost if 1 node fails | if 2 fail | if 3 fail |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for cells in rows_of(**vars(parser.parse_args())):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
