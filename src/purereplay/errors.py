"""The one kind of error that a user can mend: shown as a single sentence, exit code 2."""


class UserError(Exception):
    """Something the user gave cannot be used; the message is one sentence that names the culprit."""
