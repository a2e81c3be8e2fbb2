"""What was compiled, for people: reports and pictures."""
