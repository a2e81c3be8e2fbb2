"""From a user's model to a Step. A front-end imports `step` and its own framework, nothing else."""
