"""The service without training: serves a small bundle, and calls it over HTTP and gRPC. Run by
`make quickstart`, or

python -m examples.quickstart, from the root of a clone
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rowcast_client import Client, Neighbor, RankedCandidate, RowcastError

from examples import served

BUNDLES = Path("examples/quickstart/bundles")
MODEL = "movielens"
VERSION = 1
VIEWER = {"user_id": 7, "history": [1, 5, 12, 31], "hour": 20}
ATTRIBUTES = ("title", "year", "genres")


def main() -> int:
    """Serves the bundle, sends requests and shows the responses; returns the exit code."""
    console = Console(highlight=False)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "serve.log"
        try:
            with served.serving(BUNDLES, MODEL, VERSION, log) as service:
                ready_s = time.monotonic() - start
                console.print(f"rowcast-serve --root {BUNDLES}: ready after {ready_s:.1f} s")
                send_requests(service, console)
        except (served.ServiceFailed, RowcastError) as problem:
            sys.stderr.write(f"{problem}\n")
            if log.exists():
                sys.stderr.write(log.read_text())
            return 1
    console.print(f"To keep it running: {served.program('rowcast-serve')} --demo", soft_wrap=True)
    console.print("Then open http://localhost:8080/")
    return 0


def send_requests(service: served.Service, console: Console) -> None:
    """Sends one viewer's requests over both transports and shows titles."""
    with Client(service.grpc) as grpc, Client(service.http) as http:
        watched = VIEWER["history"]
        nearest = grpc.retrieve(VIEWER, k=5, exclude_ids=watched, attributes=ATTRIBUTES)[0]
        console.print(titles("nearest movies for viewer 7 (gRPC Retrieve)", nearest))
        best = http.recommend(VIEWER, k=5, exclude_ids=watched, attributes=ATTRIBUTES)[0]
        console.print(titles("retrieved and ranked (HTTP :recommend)", best))
        is_mapped = served.tensorflow_mapped(service.process)
        console.print(f"TensorFlow in the service: {'yes' if is_mapped else 'no'}")


def titles(title: str, candidates: Sequence[Neighbor | RankedCandidate]) -> Table:
    """Returns a table of movies and their scores."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("title", "year", "genres", "score"):
        table.add_column(column, justify="right" if column == "score" else "left")
    for movie in candidates:
        attributes = movie.attributes
        table.add_row(
            str(attributes["title"]),
            str(attributes["year"]),
            ", ".join(attributes["genres"]),
            f"{movie.score:.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
