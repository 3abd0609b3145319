"""Episodes: the classes of each task, and the order of the tasks (paper, section 5.1 and the appendix on episodes).

In: dataset, noise kind and episode name. Out: the tasks, a tuple of tuples of class ids, by which a stream is split.
Episode A is the paper's. The paper does not list B and C: they were drawn once by `draw_classes`, which sorts the
classes by a hash of (dataset, noise, episode, class), split into pairs and recorded here; a test draws them again. The
hash makes the draw independent of the version of NumPy. CIFAR-100's twenty tasks of five random classes are drawn by
the same function on each call, in every episode. Its superclass tasks are the twenty superclasses, in the official
order in A and in a drawn order in B and C.
"""

from purereplay.data.catalogue import CIFAR100_SUPERCLASS
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError

Tasks = tuple[tuple[int, ...], ...]
EPISODES = ("A", "B", "C")

# (dataset, noise) → episode → tasks
RECORDED: dict[tuple[str, str], dict[str, Tasks]] = {
    ("mnist", "symmetric"): {
        "A": ((7, 6), (2, 3), (0, 1), (5, 9), (8, 4)),
        "B": ((1, 7), (2, 3), (9, 0), (5, 4), (8, 6)),
        "C": ((8, 4), (6, 5), (2, 1), (0, 9), (3, 7)),
    },
    ("mnist", "asymmetric"): {
        "A": ((2, 7), (3, 8), (5, 6), (0, 9), (4, 1)),
        "B": ((9, 2), (7, 3), (4, 0), (5, 6), (1, 8)),
        "C": ((1, 5), (8, 6), (4, 7), (3, 2), (0, 9)),
    },
    ("cifar10", "symmetric"): {
        "A": ((7, 6), (2, 3), (0, 1), (5, 9), (8, 4)),
        "B": ((6, 5), (4, 3), (0, 9), (2, 7), (1, 8)),
        "C": ((1, 0), (3, 9), (2, 6), (5, 7), (4, 8)),
    },
    ("cifar10", "asymmetric"): {
        "A": ((9, 1), (2, 0), (3, 5), (6, 8), (4, 7)),
        "B": ((6, 8), (0, 3), (4, 2), (7, 1), (5, 9)),
        "C": ((5, 7), (0, 4), (9, 6), (3, 8), (1, 2)),
    },
    # positions in the list of WebVision's fourteen classes; its noise is real, so there is only one kind
    ("webvision14", "symmetric"): {
        "A": ((7, 2), (11, 1), (8, 13), (3, 0), (6, 5), (12, 9), (4, 10)),
        "B": ((2, 6), (13, 1), (0, 4), (3, 8), (9, 12), (10, 7), (5, 11)),
        "C": ((13, 1), (11, 12), (4, 7), (10, 0), (2, 5), (6, 9), (3, 8)),
    },
}

# datasets that share classes, and so episodes, with another
_SHARES = {"digits": "mnist", "cifar10n": "cifar10", "cifar100n": "cifar100"}


def draw_classes(dataset: str, noise: str, episode: str, *, n_classes: int) -> tuple[int, ...]:
    """Return the classes 0 … n_classes − 1 in an order that depends on the names alone."""
    return tuple(sorted(range(n_classes), key=lambda c: derive_seed("episode", dataset, noise, episode, c)))


def group(classes: tuple[int, ...], size: int) -> Tasks:
    """Split `classes` into tasks of `size` classes each."""
    return tuple(classes[start : start + size] for start in range(0, len(classes), size))


def tasks_for(dataset: str, noise: str, episode: str = "A") -> Tasks:
    """Return the tasks of `dataset` with `noise` in `episode`; noise "none" uses the symmetric episodes."""
    if episode not in EPISODES:
        raise UserError(f"The episode {episode!r} is unknown: choose one of {', '.join(EPISODES)}.")
    family = dataset.partition("-")[0]
    family = _SHARES.get(family, family)
    kind = "symmetric" if noise == "none" else noise
    if family == "cifar100" and kind == "symmetric":
        return group(draw_classes("cifar100", kind, episode, n_classes=100), 5)
    if family == "cifar100" and kind == "superclass":
        return _superclass_tasks(episode)
    if (family, kind) not in RECORDED:
        raise UserError(f"The dataset {dataset!r} has no episodes for the noise {noise!r}.")
    return RECORDED[family, kind][episode]


def _superclass_tasks(episode: str) -> Tasks:
    """Return CIFAR-100's superclasses as tasks, the classes of each in ascending order."""
    in_order = tuple(range(20))
    order = in_order if episode == "A" else draw_classes("cifar100", "superclass", episode, n_classes=20)
    return tuple(tuple(c for c in range(100) if CIFAR100_SUPERCLASS[c] == s) for s in order)
