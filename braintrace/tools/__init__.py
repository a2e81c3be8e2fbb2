"""Programs around the library: the comparison of rules, the command line, the demo."""
