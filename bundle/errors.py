"""The errors of a bundle, in terms of its format, without the codes of any protocol.

BundleError
├── FormatError             a manifest or file that violates the format
│   ├── UnknownFormat       a format version that this reader does not support
│   └── UnsafePath          a path that leaves the bundle
├── DigestMismatch          committed bytes that differ from their checksum, or are missing
├── SignatureRejected       a bundle that is not, or not wholly, what a trusted key signed
│   └── SignatureMissing    a bundle without a signature, where one is required
├── NotCommitted            a directory without a manifest: not a bundle, or an incomplete one
├── DestinationExists       a version that exists already; bundles are never overwritten
├── VersionBusy             a version that another process is writing
├── RowOutOfRange           a row that the table does not have
├── Misfit                  values that a request sent do not fit
│   ├── FeatureError        values that are not ids, or do not fit their feature
│   │   ├── NotSent         an input without a default that was not sent
│   │   ├── UnknownRejected an unknown id of a feature whose rule is `refuse`
│   │   └── WrongLength     a list of another length than its input takes
│   └── UnknownCandidate    a value that is not an id of the corpus
├── RowUnavailable          a row that could not be fetched, where unknown ids are rejected
├── RecordDamaged           a TFRecord file with a record that is damaged
├── ChangesDamaged          a changes file that is damaged
├── ChangesReplaced         a changes file that was removed, cut or replaced while it was open
├── ChangesUnavailable      a changes file that cannot be read or written now
├── ChangesLocked           a changes file that another process or thread is writing
├── CopyDiffers             a copy of a changes file with states that the file does not have
├── FormulaError            an invalid formula, or one that names an unknown output
└── FormulaUndefined        a formula without a finite value; also an ArithmeticError
"""

from __future__ import annotations


class BundleError(Exception):
    """A bundle, or values that a request sends to it, are invalid. The message is safe to send to a
    client.
    """


class FormatError(BundleError):
    """A manifest or file violates the format."""


class UnknownFormat(FormatError):
    """The bundle has a format version that this release does not read; another release may."""


class UnsafePath(FormatError):
    """A path is absolute, not normalized, or leads out of the bundle."""


class DigestMismatch(BundleError):
    """A file differs from its checksum, is missing, or is truncated."""


class SignatureRejected(BundleError):
    """The bundle is not what a trusted key signed: the signature is by none of the keys, or a file
    differs from the signed one, was added, or is missing.

    Attributes:
      path: The file that differs; "": the signature is missing, or by none of the keys.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class SignatureMissing(SignatureRejected):
    """The bundle has no signature, and one is required."""


class NotCommitted(BundleError):
    """The directory has no manifest: it is not a bundle, or is still being written."""


class DestinationExists(BundleError):
    """The version to write exists already; bundles are never overwritten."""


class VersionBusy(BundleError):
    """Another process is writing this version."""


class RowOutOfRange(BundleError):
    """A row is negative or past the end of its table."""


class Misfit(BundleError):
    """Values do not fit what reads them.

    Attributes:
      value: What was sent, as a short text.
      expected: What was expected, as a phrase in the singular.
      predicate: What is wrong with the value, where that needs words.
      problem: The sentence of all three.
    """

    def __init__(self, subject: str, value: object, expected: str, predicate: str = "") -> None:
        """Creates the error.

        Args:
          subject: The field or feature that the values were sent in.
          value, expected, predicate: As in the attributes.
        """
        text = str(value)
        clause = f"{text} {predicate}".rstrip()
        problem = f"{clause}; {expected} was expected"
        super().__init__(f"{subject}: {problem}")
        self.value = text
        self.expected = expected
        self.predicate = predicate
        self.problem = problem


class FeatureError(Misfit):
    """Values are not ids, or do not fit their feature.

    Attributes:
      feature: The name of the feature.
    """

    def __init__(self, feature: str, value: object, expected: str, predicate: str = "") -> None:
        super().__init__(f"feature {feature!r}", value, expected, predicate)
        self.feature = feature


class NotSent(FeatureError):
    """An input without a default was not sent, or not for each example."""

    def __init__(self, name: str) -> None:
        predicate = "was sent, and the feature has no default"
        super().__init__(name, "no value", "a value for each example", predicate)


def rejection_of_unknown(input_name: str) -> str:
    """Returns the clause of an error about an id that a feature rejects, with the key of the recipe
    that decides it.
    """
    return f"and the feature rejects unknown ids (features.{input_name}.unknown of the recipe)"


class UnknownRejected(FeatureError):
    """An id has no row in the table of a feature whose `unknown` rule is `refuse`."""


class WrongLength(FeatureError):
    """An example has another number of values than its input takes.

    Attributes:
      example: The position of the example.
      counts: The number of values that it has, and the number that was expected, as a clause.
    """

    def __init__(self, feature: str, example: int, count: int, expected: str) -> None:
        """Creates the error.

        Args:
          feature, example: As in the attributes.
          count: The number of values that the example has.
          expected: The number that was expected, such as "at most 3".
        """
        super().__init__(feature, f"{count} values in example {example}", f"a list of {expected}")
        self.example = example
        self.counts = f"has {count} values; {expected} were expected"


class UnknownCandidate(Misfit):
    """A value is not an id of the type that the corpus has.

    Attributes:
      field: What the values are called where they were sent.
    """

    def __init__(self, field: str, value: object, expected: str, predicate: str = "") -> None:
        super().__init__(field, value, expected, predicate)
        self.field = field


class RowUnavailable(BundleError):
    """The row of an id could not be fetched, and its feature rejects unknown ids.

    Attributes:
      feature: The name of the feature.
      value: The id, as a short text.
    """

    def __init__(self, feature: str, value: object) -> None:
        self.feature = feature
        self.value = f"id {value!s:.80}"
        super().__init__(
            f"feature {feature!r}: the row of {self.value} is unavailable, and the feature rejects "
            "unknown ids"
        )


class RecordDamaged(BundleError):
    """A record of a TFRecord file is damaged, or the file is no TFRecord file.

    Attributes:
      number: The number of the record, from 1.
      problem: What is wrong with it, as a clause.
      is_gzip: Whether the file looks compressed with GZIP.
    """

    def __init__(self, number: int, problem: str, *, is_gzip: bool = False) -> None:
        super().__init__(f"record {number} {problem}")
        self.number = number
        self.problem = problem
        self.is_gzip = is_gzip


class ChangesDamaged(BundleError):
    """A changes file is damaged."""


class ChangesReplaced(BundleError):
    """A changes file was removed, cut or replaced by another one while it was open."""


class ChangesUnavailable(BundleError):
    """A changes file cannot be read or written now, such as on a full disk; nothing was changed."""


class ChangesLocked(BundleError):
    """The lock of a changes file could not be had in time; nothing was read or changed."""


class CopyDiffers(BundleError):
    """A copy of a changes file has states that the file does not have, or lacks deletions that the
    file has forgotten; the message names the last state of the copy.
    """


class FormulaError(BundleError):
    """A formula is invalid or names an unknown output; the message has the position."""


class FormulaUndefined(BundleError, ArithmeticError):
    """A formula has no finite value for a candidate, such as the logarithm of a negative number.

    Attributes:
      position: The position of the candidate.
    """

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(problem)
        self.position = position
