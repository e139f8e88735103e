"""Rules: pure functions from the norms or the Gram matrix of the class gradients to one weight per class.

The update direction is Σ_l w_l g_l with ``w = rule(statistics)``. A new rule is a class with ``needs`` and
``__call__``.
"""

from classgrad.rules._bisect import Bisect
from classgrad.rules._normalize import Normalize
from classgrad.rules._prefer import Prefer
from classgrad.rules._rescale import Rescale
from classgrad.rules._rule import ClassStatistics, Rule
from classgrad.rules._sum import Sum
from classgrad.rules._torchjd import from_torchjd

__all__ = ["Bisect", "ClassStatistics", "Normalize", "Prefer", "Rescale", "Rule", "Sum", "from_torchjd"]
