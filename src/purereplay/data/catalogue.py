"""Facts about each dataset: sizes, classes, licence, and applicable noise.

Facts only; `datasets` loads, `sources` finds and downloads. Listing them opens no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from purereplay.errors import UserError


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Facts about one dataset."""

    name: str
    n_train: int  # images in the official training part
    n_test: int
    shape: tuple[int, int, int]  # channels, height, width
    class_names: tuple[str, ...]
    licence: str
    home: str
    how: str  # how to get it, one sentence
    asymmetric: Mapping[int, int] | None = None  # class → the class it is mistaken for
    superclass: tuple[int, ...] | None = None  # one superclass id per class
    has_truth: bool = True  # whether the training part's true labels are known
    noisy: bool = False  # the labels are noisy already: no noise is added
    mean: tuple[float, ...] | None = None  # per channel, of inputs in [0, 1]; None: inputs stay in [0, 1]
    std: tuple[float, ...] | None = None
    buffer_size: int = 500  # samples in the delayed buffer, the purified buffer and the baselines' memories (paper)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


DIGIT_MISTAKES = {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}
# truck → automobile, bird → airplane, cat ↔ dog, deer → horse
CIFAR10_MISTAKES = {9: 1, 2: 0, 3: 5, 5: 3, 4: 7}

# the coarse label of each fine label, as in the official files (verified when they are read)
_COARSE = """
    4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5
    5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13
    16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13
"""
CIFAR100_SUPERCLASS = tuple(int(coarse) for coarse in _COARSE.split())

_DIGITS = tuple("0123456789")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man
    maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail
    snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
    tulip turtle wardrobe whale willow_tree wolf woman worm
"""
# WebVision's class ids (zero-based lines of info/synsets.txt) and a word of each line, in the paper's order
WEBVISION_CLASSES = {
    412: "trash can",
    480: "cash machine",
    506: "spiral",
    395: "garfish",
    421: "bannister",
    121: "king crab",
    498: "cinema",
    762: "restaurant",
    48: "Komodo dragon",
    896: "washbasin",
    32: "frog",
    414: "backpack",
    147: "grey whale",
    436: "wagon",
}

_CIFAR10_INFO = DatasetInfo(
    name="cifar10",
    n_train=50_000,
    n_test=10_000,
    shape=(3, 32, 32),
    class_names=_CIFAR10,
    licence="none stated; free for research, cite Krizhevsky 2009",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    how="downloaded when first used (163 MiB)",
    asymmetric=CIFAR10_MISTAKES,
)
_CIFAR100_INFO = replace(
    _CIFAR10_INFO,
    name="cifar100",
    class_names=tuple(_CIFAR100_NAMES.split()),
    how="downloaded when first used (161 MiB)",
    asymmetric=None,
    superclass=CIFAR100_SUPERCLASS,
    buffer_size=5000,
)


def _human(clean: DatasetInfo, name: str, what: str) -> DatasetInfo:
    """Return the facts about CIFAR-N: the images of `clean` with labels given by people."""
    return replace(
        clean,
        name=name,
        licence="CC BY-NC 4.0 (labels)",
        home="https://github.com/UCSC-REAL/cifar-10-100n",
        how=f"labels by people, {what}; downloaded when first used, with its images",
        asymmetric=None,
        superclass=None,
        noisy=True,
    )


INFOS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo(
            name="digits",
            n_train=1_437,
            n_test=360,
            shape=(1, 8, 8),
            class_names=_DIGITS,
            licence="CC BY 4.0",
            home="https://archive.ics.uci.edu/dataset/80",
            how="comes with scikit-learn, nothing to download",
            asymmetric=DIGIT_MISTAKES,
            buffer_size=100,
        ),
        DatasetInfo(
            name="mnist",
            n_train=60_000,
            n_test=10_000,
            shape=(1, 28, 28),
            class_names=_DIGITS,
            licence="CC BY-SA 3.0",
            home="http://yann.lecun.com/exdb/mnist/",
            how="downloaded when first used (11 MiB)",
            asymmetric=DIGIT_MISTAKES,
            buffer_size=300,
        ),
        _CIFAR10_INFO,
        _CIFAR100_INFO,
        DatasetInfo(
            name="webvision14",
            n_train=47_784,
            n_test=700,
            shape=(3, 84, 84),
            class_names=tuple(WEBVISION_CLASSES.values()),
            licence="for non-commercial research; the images belong to their owners",
            home="https://data.vision.ee.ethz.ch/cvl/webvision/dataset2017.html",
            how="download WebVision 1.0's Google part and validation part by hand (no automatic download)",
            has_truth=False,
            noisy=True,
            mean=(0.485, 0.456, 0.406),  # ImageNet's
            std=(0.229, 0.224, 0.225),
            buffer_size=1000,
        ),
        _human(_CIFAR10_INFO, "cifar10n", 'the worst of three ("worst", 40 % wrong)'),
        _human(_CIFAR10_INFO, "cifar10n-aggregate", "the majority of three (9 % wrong)"),
        _human(_CIFAR10_INFO, "cifar10n-random1", "the first of three (17 % wrong)"),
        _human(_CIFAR10_INFO, "cifar10n-random2", "the second of three (18 % wrong)"),
        _human(_CIFAR10_INFO, "cifar10n-random3", "the third of three (18 % wrong)"),
        _human(_CIFAR100_INFO, "cifar100n", "one each (40 % wrong)"),
    )
}


def info_for(name: str) -> DatasetInfo:
    """Return the facts about the dataset `name`."""
    if name not in INFOS:
        raise UserError(f"The dataset {name!r} is unknown: choose one of {', '.join(INFOS)}.")
    return INFOS[name]
