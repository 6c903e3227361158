"""Writes notebooks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_notebook(path: Path, cells: Sequence[str], **metadata: Any) -> Path:
    """Writes a notebook of nbformat 4.

    Args:
      path: The file.
      cells: The text of each cell of code. A cell of text precedes each.
      metadata: The metadata of the notebook.
    """
    heading = {"cell_type": "markdown", "metadata": {}, "source": ["## Next step"]}
    written: list[dict[str, Any]] = []
    for text in cells:
        lines = text.splitlines(keepends=True)
        written += [heading, {"cell_type": "code", "metadata": {}, "outputs": [], "source": lines}]
    page = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": written}
    path.write_text(json.dumps(page))
    return path
