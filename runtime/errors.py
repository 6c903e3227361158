"""The errors of towers and indexes, in addition to the errors of bundles, without the codes of any
protocol.

BundleError
├── FormatError
│   ├── TowerUnreadable       a tower's file is damaged, or does not match the manifest
│   └── IndexUnreadable       an index's files are damaged, incomplete, or do not match the manifest
├── InvalidInput              arrays that a tower or an index does not accept: shape, dtype, NaN
│   └── ComputationFailed     arrays with a value that a tower cannot compute with
├── InvalidIndex              vectors or parameters from which no index can be built
├── LibraryMissing            an optional library is not installed; names the extra
└── DeviceMissing             TensorFlow does not find the requested device
"""

from __future__ import annotations

from bundle.errors import BundleError, FormatError


class TowerUnreadable(FormatError):
    """The file of a tower is damaged, or its inputs and outputs differ from the manifest."""


class IndexUnreadable(FormatError):
    """The files of an index are damaged or incomplete, or differ from the manifest."""


class InvalidInput(BundleError):
    """A tower or an index does not accept the arrays."""


class ComputationFailed(InvalidInput):
    """The arrays hold a value that a tower cannot compute with, such as the number of a missing
    row.
    """


class InvalidIndex(BundleError):
    """No index can be built from the vectors or parameters."""


class LibraryMissing(BundleError):
    """An optional library is not installed. The message names the extra that installs it."""


class DeviceMissing(BundleError):
    """TensorFlow does not find the requested device."""
