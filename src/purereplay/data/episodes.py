"""Episodes: the classes of each task, and the order of the tasks (paper, section 5.1 and the appendix on episodes).

In: dataset, noise kind and episode name. Out: the tasks, a tuple of tuples of class ids, by which a stream is split.
Episode A is the paper's; CIFAR-100's random tasks of A are those of the released code. The paper does not list B and C:
they were drawn once and recorded here; a test draws them again. `draw_classes` sorts classes by a hash of (dataset,
noise, episode, class), so the draw does not depend on the version of NumPy; the classes are then split into pairs. With
asymmetric noise a task is a pair of classes that are mistaken for each other (paper, section 5.1), so B and C have the
pairs of A in a drawn order. CIFAR-100's random tasks of B and C are drawn on each call. Its superclass tasks are the
twenty superclasses, in the official order in A and in a drawn order in B and C.

A change of tasks changes the numbers of a run whose settings stay the same: `tasks_version` counts such changes.
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
        "B": ((5, 6), (0, 9), (4, 1), (2, 7), (3, 8)),
        "C": ((3, 8), (4, 1), (0, 9), (5, 6), (2, 7)),
    },
    ("cifar10", "symmetric"): {
        "A": ((7, 6), (2, 3), (0, 1), (5, 9), (8, 4)),
        "B": ((6, 5), (4, 3), (0, 9), (2, 7), (1, 8)),
        "C": ((1, 0), (3, 9), (2, 6), (5, 7), (4, 8)),
    },
    ("cifar10", "asymmetric"): {
        "A": ((9, 1), (2, 0), (3, 5), (6, 8), (4, 7)),
        "B": ((9, 1), (6, 8), (4, 7), (3, 5), (2, 0)),
        "C": ((9, 1), (4, 7), (6, 8), (2, 0), (3, 5)),
    },
    # positions in the list of WebVision's fourteen classes; its noise is real, so there is only one kind
    ("webvision14", "symmetric"): {
        "A": ((7, 2), (11, 1), (8, 13), (3, 0), (6, 5), (12, 9), (4, 10)),
        "B": ((2, 6), (13, 1), (0, 4), (3, 8), (9, 12), (10, 7), (5, 11)),
        "C": ((13, 1), (11, 12), (4, 7), (10, 0), (2, 5), (6, 9), (3, 8)),
    },
}

# the classes of CIFAR-100 in the released code's random episode
_CIFAR100_A = """
    65 22 46 73 61 29 48 90 6 13 60 3 34 97 30 4 92 26 32 80 84 82 8 31 69 35 7 17 39 93 19 79 14 56 50 66 41 16 21 12
    63 87 15 68 94 10 45 2 91 38 67 99 95 70 75 72 24 37 11 59 23 74 77 5 27 25 58 51 78 18 44 33 98 53 86 62 55 0 71
    36 40 57 42 81 43 1 76 83 54 96 88 9 47 28 20 89 85 64 49 52
"""

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
    family, kind = _family(dataset), "symmetric" if noise == "none" else noise
    if family == "cifar100" and kind == "symmetric":
        listed = tuple(int(c) for c in _CIFAR100_A.split())
        return group(listed if episode == "A" else draw_classes("cifar100", kind, episode, n_classes=100), 5)
    if family == "cifar100" and kind == "superclass":
        return _superclass_tasks(episode)
    if (family, kind) not in RECORDED:
        raise UserError(f"The dataset {dataset!r} has no episodes for the noise {noise!r}.")
    return RECORDED[family, kind][episode]


def tasks_version(dataset: str, noise: str, episode: str) -> int:
    """Return 2 for tasks that changed after version 0.1.0, otherwise 1."""
    family = _family(dataset)
    pairs_kept = family in ("mnist", "cifar10") and noise == "asymmetric" and episode != "A"
    listed = family == "cifar100" and noise in ("none", "symmetric") and episode == "A"
    return 2 if pairs_kept or listed else 1


def _family(dataset: str) -> str:
    """Return the dataset whose classes, and so episodes, this one has."""
    family = dataset.partition("-")[0]
    return _SHARES.get(family, family)


def _superclass_tasks(episode: str) -> Tasks:
    """Return CIFAR-100's superclasses as tasks, the classes of each in ascending order."""
    in_order = tuple(range(20))
    order = in_order if episode == "A" else draw_classes("cifar100", "superclass", episode, n_classes=20)
    return tuple(tuple(c for c in range(100) if CIFAR100_SUPERCLASS[c] == s) for s in order)
