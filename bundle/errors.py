"""What can be wrong with a bundle, in terms of the format; no codes of any protocol.

BundleError
├── FormatError            a manifest or file that the format does not allow
│   ├── UnknownFormat      a format version that this reader does not know
│   └── UnsafePath         a path that leaves the bundle
├── DigestMismatch         committed bytes that differ from their checksum, or are missing or cut short
├── NotCommitted           a directory without a manifest: no bundle, or one still being written
├── DestinationExists      a version that is already there; committed bundles are never overwritten
├── RowOutOfRange          a row that the table does not have
├── FeatureError           values that are no ids or do not fit their feature; names the feature
│   └── UnknownRefused     an unknown id where the feature's rule is `refuse`
├── UnknownCandidate       an id that the candidate store does not hold, or none of its kind
├── FormulaError           a formula that is none, or names what is no output
└── FormulaUndefined       a formula that has no finite value for a candidate; an ArithmeticError, too
"""

from __future__ import annotations


class BundleError(Exception):
    """Anything wrong with a bundle or with values requested of it; the message is safe to show to a caller."""


class FormatError(BundleError):
    """A manifest or file that the format does not allow."""


class UnknownFormat(FormatError):
    """A format version that this reader does not know; a newer product version may read it."""


class UnsafePath(FormatError):
    """A path that is absolute, not normalised, or leaves the bundle."""


class DigestMismatch(BundleError):
    """Committed bytes that differ from their checksum, or a listed file that is missing or truncated."""


class NotCommitted(BundleError):
    """A directory without a manifest."""


class DestinationExists(BundleError):
    """The version to be written exists already."""


class VersionBusy(BundleError):
    """Another run is writing this version."""


class RowOutOfRange(BundleError):
    """A row is negative or past the end of its table."""


class FeatureError(BundleError):
    """Values that are not ids, or do not fit their feature.

    Attributes:
      feature: the feature's name.
      problem: what is wrong with the values, which it names.
    """

    def __init__(self, feature: str, problem: str) -> None:
        super().__init__(f"feature {feature!r}: {problem}")
        self.feature, self.problem = feature, problem


class UnknownRefused(FeatureError):
    """An id that the table does not hold, sent to a feature whose unknown rule is `refuse`."""


class UnknownCandidate(BundleError):
    """An id that the candidate store does not hold, or a value that is not an id of its type."""


class FormulaError(BundleError):
    """An invalid formula, or one that names an unknown output; gives the position and what was expected."""


class FormulaUndefined(BundleError, ArithmeticError):
    """A formula without a finite value for a candidate, such as the logarithm of a negative number.

    Attributes:
      place: of the candidate.
    """

    def __init__(self, problem: str, place: int) -> None:
        super().__init__(problem)
        self.place = place
