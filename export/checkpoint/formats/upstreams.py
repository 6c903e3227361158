"""The programs whose formats are read here: the newest release of each whose files were read, and
the errors of metadata that this release does not write.

A field that is not known may say in which order the rows of tables lie, so it is an error, unless
no field of its message can say that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bundle.format.key_paths import key_path
from bundle.shown_values import SHOWN_MAX, shown, shown_names
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.variables import RANK_MAX
from export.errors import CheckpointError
from object_store.locations import Location


class Upstream(NamedTuple):
    """A program that writes files which are read here.

    Attributes:
      name: The name of the program.
      release: The newest release whose files were read.
    """

    name: str
    release: str

    def __str__(self) -> str:
        return f"{self.name} {self.release}"


TENSORFLOW = Upstream("TensorFlow", "2.21")
TF_KERAS = Upstream("tf-keras", "2.21")
KERAS = Upstream("Keras", "3.15")
ORBAX = Upstream("Orbax", "0.12.8")
TENSORSTORE = Upstream("tensorstore", "0.1.86")
JAX_TPU_EMBEDDING = Upstream("jax-tpu-embedding", "0.2.0")
PYTORCH = Upstream("PyTorch", "2.15.0")
TORCHREC = Upstream("TorchRec", "1.9.2")
SAFETENSORS = Upstream("safetensors", "0.8.0")

Sizes = Annotated[list[int], Field(max_length=RANK_MAX)]
"""The sizes of an array. A damaged file may have millions, so the check ends at a limit."""


class Metadata(BaseModel):
    """An object of a file of metadata: its fields as the upstream writes them, and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


_AnyMetadata = TypeVar("_AnyMetadata", bound=BaseModel)


class UnknownFields(Malformed):
    """Metadata with fields that the newest known release of their writer does not write."""

    def __init__(self, upstream: Upstream, fields: Collection[str]) -> None:
        super().__init__(
            f"written by a newer release than {upstream} (the newest that is read); these fields "
            f"are unknown: {shown_names(fields)}. They may say in which order the rows of tables "
            f"lie: save it with {upstream} and without fields of your own, or read it with a newer "
            "release of rowcast"
        )


def parse_metadata(
    model: type[_AnyMetadata], content: bytes, file: Location, upstream: Upstream
) -> _AnyMetadata:
    """Returns the JSON object in a file of metadata.

    Args:
      model: The fields that the object may have.
      content: The JSON.
      file: The file, for messages.
      upstream: The program that writes such files.

    Raises:
      CheckpointError: The content is no JSON, a field is unknown or missing, or has another type;
        the error names the file and the field.
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as problem:
        errors = problem.errors(include_url=False, include_context=False)
        fields = [str(key_path(model, error["loc"]))[:SHOWN_MAX] for error in errors]
        unknown = [
            repr(field)
            for field, error in zip(fields, errors, strict=True)
            if error["type"] == "extra_forbidden"
        ]
        if unknown:
            raise CheckpointError(f"{file}: {UnknownFields(upstream, unknown)}") from problem
        raise CheckpointError(
            f"{file}: {_reason(fields[0], errors[0])}; it is damaged, or another release than "
            f"{upstream} wrote it, the newest that is read: copy it again, or save it with that one"
        ) from problem


def skipped_fields(metadata: Metadata, file: Location, upstream: Upstream) -> list[str]:
    """Returns a note of the fields that are unknown and of which no row depends; [] without any."""
    unknown = sorted(metadata.model_extra or {})
    if not unknown:
        return []
    return [
        f"{file} was written by a newer release than {upstream} (the newest that is read); these "
        f"fields are unknown and were skipped, as no row depends on them: {shown_names(unknown)}"
    ]


def _reason(field: str, error: Any) -> str:
    """Returns the first mistake of metadata, as part of a sentence."""
    if error["type"] == "missing":
        return f"the field {field!r} is missing"
    if not field:
        return f"its content is not what was expected ({error['msg'][:SHOWN_MAX]})"
    return f"the field {field!r} is {shown(error['input'])} ({error['msg'][:SHOWN_MAX]})"
