"""The variables of a self-contained SavedModel: of any shape, cut anyhow, copied or linked, they
read back; what cannot be copied or linked is rejected before anything is written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import Entry, Slice
from export.errors import CheckpointError, NotConvertible
from export.saved_model.files import VariablesPlan, link_files, plan_variables, write_variables
from export.tables.plan import BUDGET_BYTES
from export.tables.segments import carry_out, check_sources
from tests.units.export.checkpoint.tensor_bundles import GRAPH, Box, write_bundle

Values = np.ndarray[Any, Any]
OBJECTS = b"an object graph"
DTYPES = ("f4", "f8", "f2", "i8", ml_dtypes.bfloat16)


def saved(directory: Path, table: Values, boxes: Sequence[Box] = (), files: int = 1) -> Checkpoint:
    variables = {"big": table, "bias": np.arange(3), "scale": np.array(0.5, np.float32)}
    cut = {"big": list(boxes)} if len(boxes) > 1 else None
    write_bundle(directory / "ckpt", variables, boxes=cut, files=files)
    return open_checkpoint(directory / "ckpt")


def planned(
    checkpoint: Checkpoint, directory: Path, link: bool, check: bool = False
) -> VariablesPlan:
    (directory / "sm/variables").mkdir(parents=True, exist_ok=True)
    entries = {"table_0": checkpoint.entries["big"], "table_1": checkpoint.entries["bias"]}
    return plan_variables(directory / "sm", entries, BUDGET_BYTES, link, check)


def carried_out(plan: VariablesPlan, checkpoint: Checkpoint) -> Checkpoint:
    link_files(plan)
    if plan.tasks:
        plan.written_file.write_bytes(bytes(5000))  # of an earlier run
    receipts = [carry_out(task) for task in plan.tasks]
    check_sources(plan.sources, receipts)
    write_variables(plan, checkpoint, {"weight_0": "scale"}, OBJECTS, receipts[::-1])
    return open_checkpoint(plan.prefix)


def drawn_boxes(data: st.DataObject, shape: tuple[int, ...]) -> list[Box]:
    """Cuts the first two axes once each, at most."""
    cuts = [data.draw(st.integers(0, size)) for size in shape[:2]]
    parts = [
        [(start, end - start) for start, end in ((0, cut), (cut, size)) if start < end]
        for cut, size in zip(cuts, shape, strict=False)
    ]
    rest = [(0, size) for size in shape[2:]]
    boxes = [[part] for part in parts[0]]
    for more in parts[1:]:
        boxes = [[*box, part] for box in boxes for part in more]
    return data.draw(st.permutations([[*box, *rest] for box in boxes]))


def test_any_variable_reads_back_and_a_flipped_bit_is_found() -> None:
    drawn: Counter[str] = Counter()

    @settings(max_examples=120, phases=[Phase.generate])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
        dtype = data.draw(st.sampled_from(DTYPES))
        random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
        values = (100 * random.standard_normal(shape)).astype(dtype)
        boxes = drawn_boxes(data, shape)
        link = data.draw(st.booleans())
        with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
            patch.setattr("export.saved_model.files.SEGMENT_BYTES", 100)
            directory = Path(name)
            checkpoint = saved(directory, values, boxes, data.draw(st.integers(1, 3)))
            is_cut = not checkpoint.entries["big"].whole
            if dtype == "f2" and link and is_cut and not lie_in_order(checkpoint):
                # TensorFlow restores no slices of float16.
                with pytest.raises(NotConvertible, match="float16"):
                    planned(checkpoint, directory, link, check=True)
                drawn["rejected"] += 1
                return
            plan = planned(checkpoint, directory, link, check=True)
            if data.draw(st.integers(0, 3)) == 0:
                flip(data, checkpoint)
                with pytest.raises(CheckpointError, match="do not match their checksum"):
                    carried_out(plan, checkpoint)
                drawn[f"flipped, linked {link}"] += 1
                return
            written = carried_out(plan, checkpoint)
            assert set(written.entries) == {"table_0", "table_1", "weight_0", GRAPH}
            assert written.read_all("table_0").tobytes() == values.tobytes()
            assert written.read_all("table_1").tolist() == [0, 1, 2]
            assert written.read_all("weight_0").tolist() == 0.5
            assert written.read_string(GRAPH) == OBJECTS
            assert written.entries["table_0"].whole or link
            assert bool(plan.links) is link
            links = [path.stat().st_nlink for path in plan.prefix.parent.glob("*.data-*")]
            assert (max(links) > 1) is link
        drawn.update([f"axes {len(shape)}", f"slices {len(boxes)}", f"linked {link}", str(dtype)])

    check()
    names = {f"axes {count}" for count in range(1, 5)} | {f"slices {count}" for count in (1, 2, 4)}
    names |= {"rejected", *map(str, DTYPES)}
    names |= {f"{what}linked {link}" for what in ("", "flipped, ") for link in (False, True)}
    assert names - set(drawn) == set(), "never drawn"


def lie_in_order(checkpoint: Checkpoint) -> bool:
    """Returns whether slices of rows lie behind each other, so that they are linked as one."""
    entry = checkpoint.entries["big"]
    slices = sorted(entry.slices, key=lambda part: part.starts)
    ends = [(part.file, part.offset + part.bytes) for part in slices]
    are_rows = all(part.shape[1:] == entry.shape[1:] for part in slices)
    return are_rows and [(part.file, part.offset) for part in slices[1:]] == ends[:-1]


def flip(data: st.DataObject, checkpoint: Checkpoint) -> None:
    """Changes a bit of the large variable as a failing disk does: without a new time."""
    part = data.draw(st.sampled_from(checkpoint.entries["big"].slices))
    path = Path(part.file)
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[part.offset + data.draw(st.integers(0, part.bytes - 1))] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


ROWS = ([(0, 4), (0, 6)], [(4, 6), (0, 6)])


def entry_of(*boxes: Box, crc: int | None = 1) -> Entry:
    """Returns a variable of 10 by 6, or by 6 by 2, whose slices lie behind each other."""
    offset = 100
    slices = []
    for box in boxes:
        size = 4 * int(np.prod([extent for _, extent in box]))
        starts, shape = (tuple(numbers) for numbers in zip(*box, strict=True))
        slices.append(Slice("ckpt.data-00000-of-00001", offset, size, crc, starts, shape))
        offset += size
    return Entry("table", "float32", (10, 6, 2)[: len((boxes or ROWS)[0])], tuple(slices))


HALF_SUMMED = entry_of(*ROWS)._replace(
    slices=(entry_of(*ROWS).slices[0], entry_of(*ROWS, crc=None).slices[1])
)


@pytest.mark.parametrize(
    ("entry", "links", "error", "words"),
    [
        (entry_of([(0, 4), (0, 6)], [(5, 5), (0, 6)]), (0, 1), CheckpointError, "anew"),
        (entry_of([(0, 4), (0, 6)], [(3, 7), (0, 6)]), (0, 1), CheckpointError, "anew"),
        (entry_of([(0, 10), (0, 2)], [(0, 10), (3, 3)]), (0, 1), CheckpointError, "anew"),
        (
            entry_of(*([(0, 10), (0, 6), (half, 1)] for half in (0, 1))),
            (0, 1),
            NotConvertible,
            "third axis",
        ),
        (entry_of(*ROWS, crc=None), (1,), NotConvertible, "no checksum"),
        (HALF_SUMMED, (1,), NotConvertible, "no checksum"),
        (entry_of()._replace(slices=()), (0, 1), NotConvertible, "chunks of an array store"),
    ],
)
def test_variable_that_cannot_be_copied_or_linked_is_rejected(
    entry: Entry, links: Sequence[int], error: type[Exception], words: str
) -> None:
    for link in (0, 1):
        if link in links:
            with pytest.raises(error, match=f"'table'.*{words}"):
                plan_variables(Path("/out"), {"table_0": entry}, BUDGET_BYTES, bool(link))
        else:
            assert plan_variables(Path("/out"), {"table_0": entry}, BUDGET_BYTES, bool(link))
