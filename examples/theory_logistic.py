"""Logistic regression on two Gaussian classes, 7 to 1: the minority's loss rises under GD before it falls."""

from classgrad.theory import descend, gd_bound, gd_steps, logistic, pcngd_bound

problem = logistic(counts=(140, 20))
gd = descend(problem, "gd", steps=300, lr=0.1)
worst = gd.losses[:, 1].argmax()
print(
    f"GD: the minority's loss is {gd.losses[0, 1]:.3f}, {gd.losses[worst, 1]:.3f} at step {worst}, "
    f"{gd.losses[-1, 1]:.3f} at the end"
)
pcngd = descend(problem, "pcngd", steps=300, lr=0.02)
minority = pcngd.losses[:, 1]
print(f"PCNGD: {minority[0]:.3f}, {minority.max():.3f} at its highest, {minority[-1]:.3f} at the end")

bound = pcngd_bound(pcngd, problem.constants)
print(f"Th. 2 (PCNGD): min ‖g‖ = {bound.left[-1, 1]:.4f} ≤ {bound.right[-1, 1]:.4f}")
followed = descend(problem, "gd", steps=300, lr=gd_steps(problem.constants.smoothness.value, cap=1.0))
bound = gd_bound(followed, problem.constants)
print(f"Th. 1 (GD): assumptions met for the minority: {bool(bound.met[-1, 1])}, since 1 + C cos α < 0 at the start")
