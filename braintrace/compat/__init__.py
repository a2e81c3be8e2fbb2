"""What serves code that was written for the versions 0.1 and 0.2 of the interface."""
