"""How the influence of the weights is carried from window to window."""
