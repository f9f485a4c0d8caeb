"""What a user did wrong."""


class UserError(Exception):
    """A mistake in what the user gave, in one sentence; the command line prints it and exits with 2."""
