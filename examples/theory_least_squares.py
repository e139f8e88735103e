"""Over-parametrized least squares meets the PL condition everywhere: PCNGD converges at 1/T², every class at once."""

from classgrad.theory import descend, dominance, least_squares, pcn_margin, pl_bound, pl_steps

problem = least_squares(counts=(3, 2))
omega, steps = 0.3, 2000
start = problem.losses(problem.start)
path = descend(problem, "pcngd", steps, pl_steps(steps, start, problem.constants, problem.pl, omega))
bound = pl_bound(path, problem.constants, problem.pl, omega)
print(f"assumed ω_t ≥ {omega}; the smallest along the run is {pcn_margin(path.gram).min():.3f}")
for t in (1, 10, 100, 1000, 2000):
    losses = ", ".join(f"{value:.2e}" for value in bound.left[t - 1])
    print(f"T = {t:4}: losses {losses}, bound {bound.right[t - 1, 0]:.2e}")

mu = dominance(path, problem.constants)
print(
    "the paper's condition ½‖∇f‖ ≥ μ (f - f_*) cannot hold everywhere; at the points of this run it does with "
    f"μ = {mu[-1, 0]:.2f} and {mu[-1, 1]:.2f}"
)
