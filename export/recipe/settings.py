"""The settings of a job that its recipe does not have: where it runs, and its memory."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from bundle.storage.signatures import KeyRejected, Signer

PREFIX = "ROWCAST_EXPORT_"
"""The beginning of the names of environment variables."""
_RAY = re.compile(r"ray-local|(ray://)?[^\s:/]+:[0-9]{1,5}")
"""The executors that need Ray."""


class ExportSettings(BaseModel):
    """The settings of a job; fields may also be set in the environment as ROWCAST_EXPORT_<NAME>."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget_bytes: int = Field(
        default=256 << 20, ge=16 << 20, description="memory that one table worker may hold, bytes"
    )
    workers: int = Field(default=0, ge=0, description="table workers; 0: one per core")
    executor: str = Field(
        default="local",
        description="where table workers run: local, ray-local, HOST:PORT or ray://HOST:PORT of a "
        "cluster",
    )
    scratch: Path = Field(
        default=Path(".rowcast-scratch"),
        description="directory where a bundle is staged that goes to a URL; relative to where the "
        "command runs",
    )
    reuse: bool = Field(
        default=True,
        description="share the segments of tables that equal those of the newest version, instead "
        "of writing them again",
    )
    with_changes: Path | None = Field(
        default=None,
        description="changes file of the model's service, whose candidates and contexts are "
        "exported",
    )
    full: bool = Field(
        default=False, description="compare every row with the checkpoint instead of a sample"
    )
    load: bool = Field(
        default=True,
        description="load the bundle as a service does, in a process of its own, before it is "
        "published",
    )
    unproved: bool = Field(
        default=False,
        description="publish a self-contained SavedModel even if the original model, with which it "
        "is compared, does not fit into memory",
    )

    sign_certificates: Path | None = Field(
        default=None,
        description="certificate of sign_key, and behind it those that lead from its issuer to the "
        "authority, PEM",
    )
    sign_key: Path | None = Field(
        default=None,
        validate_default=True,
        description="private key that the bundle is signed with, PEM without a password, of the "
        "curve P-256, P-384 or P-521",
    )

    @property
    def signer(self) -> Signer | None:
        """What signs the bundle; None: it is not signed."""
        if self.sign_key is None:
            return None
        return Signer(self.sign_key, self.sign_certificates)

    @field_validator("sign_key")
    @classmethod
    def _can_sign(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        certificates = info.data.get("sign_certificates")
        if key is None:
            if certificates is not None:
                raise ValueError("sign_certificates needs the private key, sign_key")
            return None
        # Found out before the export, which may take hours.
        try:
            Signer(key, certificates).check()
        except KeyRejected as problem:
            raise ValueError(str(problem)) from problem
        return key

    @field_validator("executor")
    @classmethod
    def _can_run(cls, executor: str) -> str:
        if executor == "local":
            return executor
        if not _RAY.fullmatch(executor):
            raise ValueError("expected local, ray-local, HOST:PORT or ray://HOST:PORT")
        # Found without an import, which takes seconds.
        if find_spec("ray") is None:
            raise ValueError("needs Ray, which is not installed; run `pip install 'rowcast[ray]'`")
        return executor
