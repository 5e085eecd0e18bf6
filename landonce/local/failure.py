"""The one error of the local stack.

It never wraps an error of a pipeline: only servers that landonce itself starts raise it.
"""


class LocalStackError(Exception):
    """A local server or one of its parts is missing, did not start or did not answer; the message says what to do."""
