"""What can be wrong with what runs, beside what can be wrong with a bundle; no codes of any protocol.

BundleError
├── FormatError
│   ├── TowerUnreadable    a tower's file that is damaged, or not what the manifest says
│   └── IndexUnreadable    an index' files that are damaged, incomplete, or not what the manifest says
├── InputRefused           arrays that a tower or an index does not take: shape, dtype, NaN
│   └── ValuesRefused      arrays that fit, and hold values with which a tower cannot compute
├── IndexRefused           vectors or parameters from which no index can be built
├── LibraryMissing         an optional library that is needed here and not installed; names the extra
└── DeviceMissing          a device to run on that TensorFlow does not see
"""

from __future__ import annotations

from bundle.errors import BundleError, FormatError


class TowerUnreadable(FormatError):
    """A tower's file is damaged, or has other inputs and outputs than the manifest says."""


class IndexUnreadable(FormatError):
    """An index' files are damaged, incomplete, or hold other vectors than the manifest says."""


class InputRefused(BundleError):
    """Arrays that a tower or an index does not take."""


class ValuesRefused(InputRefused):
    """Arrays that fit, and hold values with which a tower cannot compute, as a number of a row that is not there."""


class IndexRefused(BundleError):
    """Vectors or parameters from which no index can be built."""


class LibraryMissing(BundleError):
    """An optional library is not installed; the message names the extra that brings it."""


class DeviceMissing(BundleError):
    """TensorFlow does not see the device that was asked for."""
