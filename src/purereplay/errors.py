"""Errors that are shown as a single sentence, with exit code 2."""

# messages of PyTorch's CPU allocator, and of tensors that no memory can hold
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "storage size calculation overflowed with")


class UserError(Exception):
    """An input or option cannot be used; the message is one sentence that names the culprit."""


class WriteError(UserError):
    """A file cannot be written, as on a full or read-only disk."""


class BusyError(UserError):
    """Another process works on the same folder."""


class InputError(UserError, ValueError):
    """Data given in Python cannot be used; also a ValueError, as in scikit-learn."""


class InputTypeError(UserError, TypeError):
    """Data of the wrong type; also a TypeError."""


class Interrupted(UserError):
    """The user stopped the program; raised between two training steps, where every learner's state is complete."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; PyTorch has no error type for the CPU's memory."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)
