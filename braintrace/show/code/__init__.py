"""Programs of JAX, and the steps of learners, as Python that a person can read."""
