"""The paper's theory as running code.

- **Conditions** on the Gram matrix of the class gradients: :func:`gd_margin`, :func:`pcn_margin`, their worst cases
  (:func:`worst_ratio`), and :func:`largest_step`, below which a step provably lowers the loss of every class.
- **Bounds**: a :class:`Trajectory` and its :class:`Constants` go in, a :class:`Bound` comes out, with the left and the
  right side of the theorem for every horizon and class. :data:`THEOREMS` lists them. Where the paper's statement does
  not hold as printed, the default is the corrected one and ``statement="printed"`` the paper's.
- **Constants**: exact for quadratics, least squares, logistic and softmax regression; estimated for networks.
- **Directional noise** of batches: :func:`noise_study` and its parts.
- **Toy problems** (:data:`TOYS`) with closed forms, :func:`descend` to run them, :func:`check` to run every theorem.
- **Fixed points** (:func:`fixed_points`) and :func:`analyze_run`, all of this for a run of one's own.

docs/theory.md explains every statement.
"""

from classgrad.theory._analysis import RunAnalysis, analyze_run
from classgrad.theory._check import THEOREMS, CheckRow, Theorem, check
from classgrad.theory._conditions import RuleName, gd_margin, largest_step, pcn_margin, rule_weights, worst_ratio
from classgrad.theory._constants import (
    least_squares_constants,
    logistic_constants,
    quadratic_constants,
    quadratic_pl,
    softmax_constants,
)
from classgrad.theory._descent import (
    StochasticRuns,
    descend,
    descend_stochastic,
    dominated_steps,
    gd_steps,
    second_steps,
)
from classgrad.theory._dominated import (
    dominance,
    dominance_ceiling,
    dominated_bound,
    dominated_constant_bound,
    dominated_rate,
    pl_bound,
    pl_steps,
)
from classgrad.theory._estimates import (
    class_gradients,
    class_losses,
    estimate_dominance,
    estimate_minima,
    estimate_noise,
    estimate_smoothness,
    example_gradients,
    flat_parameters,
)
from classgrad.theory._fixed_points import FixedPoints, fixed_points
from classgrad.theory._gd import gd_alternate_bound, gd_bound, gd_caps
from classgrad.theory._noise import (
    NoiseStudy,
    batch_variance,
    noise_study,
    predicted_projection,
    relative_noise,
    rescaling,
    sampled_projections,
)
from classgrad.theory._pcngd import pcngd_bound, pcngd_multiclass_bound, pcngd_second_bound, r_pcngd_bound
from classgrad.theory._pcnsgd import pcnsgd_bound
from classgrad.theory._problems import Examples, Problem, Quadratics, Ramps
from classgrad.theory._records import Bound, Constant, Constants, Statement, Trajectory
from classgrad.theory._toys import TOYS, conflict, least_squares, logistic, many_classes, tightness

__all__ = [
    "THEOREMS",
    "TOYS",
    "Bound",
    "CheckRow",
    "Constant",
    "Constants",
    "Examples",
    "FixedPoints",
    "NoiseStudy",
    "Problem",
    "Quadratics",
    "Ramps",
    "RuleName",
    "RunAnalysis",
    "Statement",
    "StochasticRuns",
    "Theorem",
    "Trajectory",
    "analyze_run",
    "batch_variance",
    "check",
    "class_gradients",
    "class_losses",
    "conflict",
    "descend",
    "descend_stochastic",
    "dominance",
    "dominance_ceiling",
    "dominated_bound",
    "dominated_constant_bound",
    "dominated_rate",
    "dominated_steps",
    "estimate_dominance",
    "estimate_minima",
    "estimate_noise",
    "estimate_smoothness",
    "example_gradients",
    "fixed_points",
    "flat_parameters",
    "gd_alternate_bound",
    "gd_bound",
    "gd_caps",
    "gd_margin",
    "gd_steps",
    "largest_step",
    "least_squares",
    "least_squares_constants",
    "logistic",
    "logistic_constants",
    "many_classes",
    "noise_study",
    "pcn_margin",
    "pcngd_bound",
    "pcngd_multiclass_bound",
    "pcngd_second_bound",
    "pcnsgd_bound",
    "pl_bound",
    "pl_steps",
    "predicted_projection",
    "quadratic_constants",
    "quadratic_pl",
    "r_pcngd_bound",
    "relative_noise",
    "rescaling",
    "rule_weights",
    "sampled_projections",
    "second_steps",
    "softmax_constants",
    "tightness",
    "worst_ratio",
]
