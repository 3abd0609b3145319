"""Seeds derived from a name: every random object of a run owns one, and none depends on the order of the others."""

import hashlib
import json


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed for `parts`, for example (run seed, "expert", buffer number); the same on every machine.

    Since a seed depends only on its name, a resumed run needs no generator's inner state to draw the same numbers.
    """
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
