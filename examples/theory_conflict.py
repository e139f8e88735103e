"""Two classes that pull at 120°, 7 examples to 1: GD gives the minority up, PCNGD serves both."""

import torch

from classgrad.theory import conflict, descend, fixed_points, gd_margin

problem = conflict(angle=120, imbalance=7)
for rule, lr, steps in (("gd", 0.1, 200), ("pcngd", 0.01, 200)):
    path = descend(problem, rule, steps=steps, lr=lr)
    first, end = path.losses[1] - path.losses[0], path.losses[-1] / path.losses[0]
    gram = path.gram[-1]
    distance = fixed_points(gram, torch.tensor([7, 1]))
    print(f"{rule}: first step changes the losses by {first[0]:+.4f} (majority), {first[1]:+.4f} (minority)")
    print(f"  after {steps} steps they are at {end[0]:.0%} and {end[1]:.0%} of the start")
    print(f"  distance from a fixed point of GD {distance.gd:.3f}, of PCNGD {distance.pcngd:.3f}")
margin = gd_margin(descend(problem, "gd", steps=1, lr=0.1).gram)[0]
print(f"1 + C cos α was {margin[0]:.2f} for the majority and {margin[1]:.2f} for the minority: the drop was predicted")
