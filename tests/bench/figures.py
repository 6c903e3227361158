"""What a run of the benchmark found, as it is kept in `build/bench/figures.json`: goals and pages are made from it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from tests.bench.limits import Bare
from tests.bench.rounds import Block
from tests.bench.services import Program


@dataclass(frozen=True)
class Footprint:
    """What a program takes: seconds from its start to its first answer, memory after that, processes.

    Attributes:
      pss_bytes: pages that its processes share counted once; rss_bytes: counted each time.
      file_bytes: what of the first are pages of files: tables, libraries.
    """

    ready_s: float
    pss_bytes: int
    rss_bytes: int
    processes: int
    file_bytes: int = 0

    @classmethod
    def of(cls, program: Program) -> Footprint:
        """Looks at a program that has answered."""
        memory = program.memory_bytes(), program.resident_bytes()
        return cls(program.ready_s, *memory, program.processes(), program.memory_bytes("Pss_File"))


@dataclass
class Group:
    """Contestants that took turns: only their figures may be compared."""

    blocks: dict[str, dict[str, Block]] = field(default_factory=dict)
    footprints: dict[str, Footprint] = field(default_factory=dict)

    def capacity(self, name: str) -> float:
        """Returns the most requests a second that a contestant answered in a closed loop."""
        return max(each.requests_per_s for block, each in self.blocks[name].items() if block.startswith("closed"))


@dataclass(frozen=True)
class Engine:
    """What searches by inner product in process: at the parameters that first reached the recall.

    Attributes:
      problem: why it was not measured; empty if it was.
    """

    problem: str = ""
    parameters: str = ""
    recall: float = 0.0
    build_s: float = 0.0
    one: Bare | None = None
    two: Bare | None = None


@dataclass
class Figures:
    """A whole run.

    Attributes:
      bare: bare calls by name and number of callers.
      ranking, retrieval: rowcast's own contestants; retrieval has the transports' ceilings beside.
      peers: groups of peers on workload R, each with rowcast's references.
      absent: reasons, by peer that was not measured.
      engines: what else searches workload Q.
      lookups: share of the C loop's rows a second, by case; of `tests.bench.lookups`.
      lookups_two_by_one: rows a second of two threads by those of one: single rows, float32, uniform ids.
      starts: median seconds to ready, by how many times the least rows the tables have.
    """

    machine: str = ""
    taken: str = ""
    scale: float = 0.0
    rounds: int = 0
    seconds: float = 0.0
    table_bytes: int = 0
    bare: dict[str, dict[int, Bare]] = field(default_factory=dict)
    ranking: Group = field(default_factory=Group)
    retrieval: Group = field(default_factory=Group)
    peers: list[Group] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    lookups: dict[str, float] = field(default_factory=dict)
    lookups_two_by_one: float = math.nan
    starts: dict[int, float] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Keeps them in a file."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Figures:
        """Reads them back."""
        return _ADAPTER.validate_python(json.loads(path.read_text()))


_ADAPTER = TypeAdapter(Figures)
