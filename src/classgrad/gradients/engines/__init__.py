"""How class gradients are had from a model: which engine a step may go by, and what it reads off the autograd graph."""
