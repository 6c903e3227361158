"""By how much results of one model may differ and still be the same: the bounds of every
comparison of an export.
"""

from __future__ import annotations

ABSOLUTE = 1e-5
"""The difference that the parity rule allows whatever the size of a value."""
RELATIVE = 1e-5
"""The share of a value that the parity rule allows as a difference: 84 epsilons of float32."""
TOLERANCE = f"|d| <= {ABSOLUTE:g} + {RELATIVE:g} * max(|y|, median |y|)"
"""The parity rule of float32 forms. The median is that of all examples, and |y| of a vector that of
its largest value. A sum of large terms may be close to 0 for one example, or in one value of a
vector, and still has the rounding of its terms, as any order of float32 additions has.
"""
MEANINGFUL_MAX = 2.0**63
"""The magnitude from which on a number measures nothing: no integer type holds it, so it is no id,
no count, no amount of money, and no time, even in nanoseconds. Results of larger numbers may
differ, with a note.
"""
ROUNDING_FACTOR = 4
"""With hostile numbers, results may also differ by this number of times what random rounding makes
of an output.
"""
ANOTHER_ORDER = 1e-4
"""The share of the largest value of a result by which the same operation may differ in another
library, in a batch of another size or with its examples in another order.
"""
RECORDED_SHARE = 0.05
"""The share of the standard deviation of recorded values by which the model may differ from them:
what bfloat16 on TPUs may explain.
"""
RECORDED_REST = 1e-3
"""The share of the largest recorded value that is allowed besides, for values that hardly vary."""
