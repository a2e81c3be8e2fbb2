"""When a compiled step is evaluated: windows, blocks, sequences."""
