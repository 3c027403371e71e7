"""Errors a user can act on: one sentence, what was expected, what was found, what to do."""


class ResultsError(ValueError):
    """A results directory, a row or a table is not what it must be."""


class ResultsWarning(UserWarning):
    """A results file could not be used; the others were."""
