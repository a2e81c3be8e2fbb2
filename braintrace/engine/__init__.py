"""Steps as functions: a program evaluated step by step, over a window, in blocks. No learning rule
is known here."""
