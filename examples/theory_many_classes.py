"""The worst case of many classes: one against all the others, where even PCNGD can make a class worse."""

import torch

from classgrad.theory import descend, gd_margin, many_classes, pcn_margin, pcngd_multiclass_bound, worst_ratio

counts = (90, 90, 90, 10)
print(
    f"worst C of the last class: {worst_ratio(torch.tensor(counts))[-1]:.0f} under GD, "
    f"{worst_ratio(torch.tensor(counts), 'pcngd')[-1]:.0f} under PCNGD"
)
for angle in (95, 105, 115, 150):
    path = descend(many_classes(counts, angle), "pcngd", steps=1, lr=0.01)
    change = float(path.losses[1, -1] - path.losses[0, -1])
    margins = [float(margin(path.gram)[0, -1]) for margin in (gd_margin, pcn_margin)]
    print(
        f"{angle}°: margins {margins[0]:+.2f} (GD), {margins[1]:+.2f} (PCNGD); PCNGD changes its loss by {change:+.1e}"
    )

problem = many_classes(counts, angle=150)
path = descend(problem, "pcngd", steps=100, lr=0.025)
for statement in ("printed", "corrected"):
    bound = pcngd_multiclass_bound(path, problem.constants, statement=statement)
    met = bound.met.any(0).tolist()
    print(f"{statement}: assumptions met by the classes {met}, largest min ‖g‖ / bound {bound.tightest:.2f}")
