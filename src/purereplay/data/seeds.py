"""Seeds derived from names: each random object of a run has its own, and none depends on the order of the others."""

import hashlib
import json


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed for `parts`, for example (run seed, "expert", buffer number); equal on every machine.

    A seed depends only on its name, so a resumed run needs no generator state to draw the same numbers.
    """
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
