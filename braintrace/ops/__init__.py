"""How the axes of `y = op(x, w)` line up."""
