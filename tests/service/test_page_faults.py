"""Page faults, as the kernel counts them."""

from __future__ import annotations

import mmap

from service.page_faults import PageFaults

PAGES = 500


def faults(kind: str) -> float:
    (family,) = PageFaults().collect()
    return next(each.value for each in family.samples if each.labels["kind"] == kind)


def test_pages_that_are_touched_first_are_minor_faults() -> None:
    before, major = faults("minor"), faults("major")
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(PAGES):
            memory[page * mmap.PAGESIZE] = 1
    assert faults("minor") - before >= PAGES
    assert faults("major") >= major
