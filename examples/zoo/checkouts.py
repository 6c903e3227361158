"""Where the published recommenders are on this machine, and what is missing."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from examples.zoo.entries import Entry, Source


class NotHere(Exception):
    """A checkout or a package is missing; the message says how to get it."""


@dataclass(frozen=True)
class Checkouts:
    """Checkouts of repositories, and the installed packages.

    Attributes:
      directory: The directory with a folder for each repository; None: the user has none.
    """

    directory: Path | None

    def require(self, entry: Entry) -> None:
        """Checks that the files of an entry and the packages that it imports are there.

        Raises:
          NotHere: A file or a package is missing.
        """
        source = entry.source
        if source.folder:
            checkout = self.path(source)
            clone = f"git clone {source.url} {checkout}"
            if not checkout.is_dir():
                raise NotHere(f"{checkout} does not exist: {clone}")
            for file in filter(None, (entry.file, entry.checkpoint)):
                if not (checkout / file).is_file():
                    raise NotHere(
                        f"{checkout} has no file {file}, which revision {source.revision[:10]} "
                        f"has: {clone}, or git -C {checkout} checkout {source.revision[:10]}"
                    )
        missing = [
            package for package in (*source.packages, *entry.packages) if not _installed(package)
        ]
        if missing:
            raise NotHere(
                f"{', '.join(missing)} not installed: docs/reference/zoo.md has the commands"
            )

    def path(self, source: Source) -> Path:
        """Returns the path of the checkout of a source.

        Raises:
          NotHere: The user named no directory.
        """
        if self.directory is None:
            raise NotHere(
                f"no directory with a checkout of {source.url}: git clone it into a directory, "
                "and name that: make zoo DIR=../zoo"
            )
        return self.directory.resolve() / source.folder

    def revision(self, source: Source) -> str:
        """Returns the commit of the checkout, or the version of the package, that is here."""
        if not source.folder:
            return _installed(source.packages[0])
        command = ["git", "-C", str(self.path(source)), "rev-parse", "HEAD"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.stdout.strip() if result.returncode == 0 else "unknown"


def _installed(package: str) -> str:
    """Returns the version of an installed package; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
