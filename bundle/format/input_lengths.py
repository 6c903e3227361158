"""Manifest entry of an input that holds a fixed number of values per example."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bundle.format.fields import Int64, Length, StrictModel

PadValue = Int64 | Annotated[float, Field(allow_inf_nan=False, strict=True)] | str
PadSide = Literal["start", "end"]
Keep = Literal["first", "last"]


class InputLength(StrictModel):
    """How many values each example has, and what becomes of a list of another length.

    Without `pad`, a shorter list is an error; without `keep`, a longer one is.
    """

    values: Length
    pad: PadValue | None = None
    """The value that fills up a shorter list, written as a request writes it."""
    pad_side: PadSide = "end"
    """The end of the list at which it is added."""
    keep: Keep | None = None
    """The end of a longer list whose values stay."""

    @model_validator(mode="after")
    def _side_of_pad(self) -> InputLength:
        if self.pad is None and self.pad_side != "end":
            raise ValueError("'pad_side' is given with 'pad' only")
        return self
