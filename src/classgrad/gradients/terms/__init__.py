"""Class gradients of parameters in the forms they are held in: what each costs, their norms and their sums."""
