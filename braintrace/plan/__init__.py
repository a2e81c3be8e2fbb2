"""Which traces a rule keeps for a graph: of which weight, for which units, of which shape, under
which key."""
