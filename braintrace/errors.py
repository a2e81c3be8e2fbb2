"""The exceptions of the compiler."""


class NotSupportedError(Exception):
    """The model uses something the chosen method has no way to handle."""


class CompilationError(Exception):
    """The model cannot be turned into an eligibility-trace graph."""
