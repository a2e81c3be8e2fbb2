"""Learners as users hold them: for plain functions, for modules of a framework."""
