"""Errors that are shown as a single sentence, with exit code 2."""


class UserError(Exception):
    """Something the user gave cannot be used; the message is one sentence that names the culprit."""


class InputError(UserError, ValueError):
    """Data handed over in Python cannot be used; a ValueError too, as scikit-learn has it."""


class InputTypeError(UserError, TypeError):
    """Likewise, where the type is wrong; a TypeError too."""


class Interrupted(UserError):
    """The person asked to stop; raised only between two training steps, where every learner's state is whole."""
