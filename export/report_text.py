"""Figures as people read them: bytes, counts of things, and agreement with trained ids."""

from __future__ import annotations

import re

from bundle.format.manifest import TrainedIdsCheck

NEEDS_TENSORFLOW = "the service needs the extra `savedmodel`"
"""What it takes to run a tower that LiteRT cannot run."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(count: int) -> str:
    """Returns a number of bytes for reading, e.g. `1.5 GiB`."""
    size = float(count)
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size = size / 1024
        unit = unit + 1
    if unit == 0:
        return f"{count} B"
    return f"{size:.1f} {_UNITS[unit]}"


def thousands(count: int) -> str:
    """Returns a large number for reading: `1,250,000`."""
    return f"{count:,}"


def count_text(count: int, noun: str) -> str:
    """Returns a number of things for reading: `1 file`, `2 files`."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"


def partitions_text(partitions: int) -> str:
    """Returns the text behind the name of an index in partitions: `, 3 partitions`; "" for one."""
    if partitions == 1:
        return ""
    return f", {count_text(partitions, 'partition')}"


def natural(name: str) -> list[tuple[int, str]]:
    """Returns a key that sorts c2 before c10."""
    key = []
    for part in re.split(r"(\d+)", name):
        if part.isdecimal():
            key.append((int(part), ""))
        else:
            key.append((-1, part))
    return key


def trained_ids_text(check: TrainedIdsCheck) -> str:
    """Returns how ids of training agree with a layout."""
    text = f"{check.agree} of {count_text(check.ids, 'trained id')} agree"
    if check.other_layout:
        text += f"; the best other layout ({check.other_layout}) reaches {check.other_agree}"
    if not check.decisive:
        text += ", which does not decide it"
    return text
