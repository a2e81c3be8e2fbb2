"""What depends on what: from one step of a model to its hidden groups and the weights that feed
them."""
