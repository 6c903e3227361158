"""Figures as people read them: bytes, counts of things, and the tables in which results
are shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Column, Table
from rich.text import Text

from bundle.format.manifest import PaddingCheck, TrainedIdsCheck

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(count: int) -> str:
    """Returns a number of bytes for reading, e.g. `1.5 GiB`."""
    size = float(count)
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size = size / 1024
        unit = unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def thousands(count: int) -> str:
    """Returns a large number for reading: `1,250,000`."""
    return f"{count:,}"


def count_text(count: int, noun: str) -> str:
    """Returns a number of things for reading: `1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def partitions_text(partitions: int) -> str:
    """Returns what is said of an index in partitions beside its name: `, 3 partitions`; of one,
    nothing.
    """
    return "" if partitions == 1 else f", {count_text(partitions, 'partition')}"


def natural(name: str) -> list[tuple[int, str]]:
    """Returns what orders c2 before c10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def unverified_lines(unverified: Sequence[str], when: str = "") -> list[Text]:
    """Returns the last line of a report: what no check could tell; none, if there is nothing.

    Args:
      unverified: each with the reason or the remedy.
      when: to be written behind "not verified", such as " at its export".
    """
    return [Text(f"not verified{when}: {'; '.join(unverified)}")] if unverified else []


def report_table(title: str, *columns: str) -> Table:
    """Returns an empty table in the look of every report; long names are folded, never cut."""
    return Table(
        *(Column(name, overflow="fold") for name in columns),
        title=title,
        title_justify="left",
        box=SIMPLE,
    )


def decoder_text(decoder: str | None) -> str:
    """Returns what a comparison of rows does not prove, to be written after its result.

    Args:
      decoder: The library that decoded the rows for the copy and for the comparison; None: they
        are not encoded.
    """
    return "" if decoder is None else f"; placement checked, decoding trusted to {decoder}"


def trained_ids_text(check: TrainedIdsCheck) -> str:
    """Returns how ids of training agree with a layout."""
    text = f"{check.agree} of {count_text(check.ids, 'trained id')} agree"
    if check.correlation is not None:
        text += f", and their counts correlate by {check.correlation:.2f}"
    if check.other_layout:
        text += f"; the best other layout ({check.other_layout}) reaches {check.other_agree}"
        if check.other_correlation is not None:
            text += f" and {check.other_correlation:.2f}"
    return text if check.decisive else f"{text}, which does not decide it"


def padding_text(padding: PaddingCheck | None) -> str:
    """Returns what a stated layout was compared with, to be written after it.

    Args:
      padding: What was compared; None: the layout is not stated, or its kind has no padding.
    """
    if padding is None:
        return ""
    if not padding.rows:
        return "; no padding could contradict it"
    slots = f" and their {', '.join(padding.slots)}" if padding.slots else ""
    return f"; compared with {count_text(padding.rows, 'padding row')}{slots}"
