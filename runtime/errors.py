"""What can be wrong with what runs, besides what can be wrong with a bundle; no codes of any protocol.

BundleError
├── FormatError
│   ├── TowerUnreadable       a tower's file is damaged, or does not match the manifest
│   └── IndexUnreadable       an index's files are damaged, incomplete, or do not match the manifest
├── InvalidInput              arrays that a tower or an index does not take: shape, dtype, NaN
│   └── ComputationFailed     arrays that fit, and hold values with which a tower cannot compute
├── InvalidIndex              vectors or parameters from which no index can be built
├── LibraryMissing            an optional library that is needed here is not installed; names the extra
└── DeviceMissing             a device to run on that TensorFlow does not see
"""

from __future__ import annotations

from bundle.errors import BundleError, FormatError


class TowerUnreadable(FormatError):
    """A tower's file is damaged, or has other inputs and outputs than in the manifest."""


class IndexUnreadable(FormatError):
    """An index's files are damaged, incomplete, or hold other vectors than in the manifest."""


class InvalidInput(BundleError):
    """Arrays that a tower or an index does not take."""


class ComputationFailed(InvalidInput):
    """Arrays that fit, and hold values with which a tower cannot compute, such as the number of a missing row."""


class InvalidIndex(BundleError):
    """Vectors or parameters from which no index can be built."""


class LibraryMissing(BundleError):
    """An optional library is not installed; the message names the extra that brings it."""


class DeviceMissing(BundleError):
    """TensorFlow does not see the requested device."""
