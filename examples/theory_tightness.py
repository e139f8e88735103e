"""The condition 1 + C_t cos α > 0 decides: on isotropic quadratics the loss of class 1 falls only if it holds."""

from classgrad.theory import descend, gd_margin, largest_step, tightness

for margin in (0.2, 0.01, -0.01, -0.2):
    problem = tightness(margin)
    path = descend(problem, "gd", steps=1, lr=1e-4)
    change = float(path.losses[1, 1] - path.losses[0, 1])
    print(f"1 + C cos α = {float(gd_margin(path.gram)[0, 1]):+.2f}: a step of 0.0001 changes its loss by {change:+.1e}")

problem = tightness(margin=0.2)
gram = descend(problem, "gd", steps=1, lr=1e-4).gram[0]
limit = float(largest_step(gram, problem.constants.smoothness.value)[1])
for factor in (0.99, 1.01):
    losses = descend(problem, "gd", steps=1, lr=factor * limit).losses
    print(f"{factor} times the largest step {limit:.4f} changes its loss by {float(losses[1, 1] - losses[0, 1]):+.1e}")
