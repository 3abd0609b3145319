"""Errors that are shown as a single sentence, with exit code 2."""


class UserError(Exception):
    """Something the user gave cannot be used; the message is one sentence that names the culprit."""


class Interrupted(UserError):
    """The person asked to stop; raised only between two training steps, where every learner's state is whole."""
