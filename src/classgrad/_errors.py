"""The one exception for what a user can mend."""


class InputError(ValueError):
    """Something that was given cannot be used.

    The message is one line: the parameter, the rule, what was found and what to do. The command line prints it
    without a traceback and exits with code 2.
    """
