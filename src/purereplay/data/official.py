"""Official files: names, addresses, checksums, and the folders in which they are usually kept.

Facts only; `sources` finds and downloads them.
"""

from purereplay.data.sources import Remote, Source

_MNIST = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_MNIST_HOSTS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST = Source(
    title="MNIST",
    folders=("mnist", "MNIST/raw", "mnist/MNIST/raw", "."),
    files=(tuple(_MNIST), tuple(name.removesuffix(".gz") for name in _MNIST)),
    remote=tuple(
        Remote(name=name, urls=tuple(host + name for host in _MNIST_HOSTS), checksum=f"md5:{md5}", limit=2**24)
        for name, md5 in _MNIST.items()
    ),
)

_CIFAR10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR10 = Source(
    title="CIFAR-10",
    folders=("cifar10", "cifar10/cifar-10-batches-py", "cifar-10-batches-py", "."),
    files=(tuple(_CIFAR10),),
    remote=(
        Remote(
            name="cifar-10-python.tar.gz",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            checksum="md5:c58f30108f718f92721af3b95e74349a",
        ),
    ),
    archive_folder="cifar-10-batches-py",
    checksums=tuple(f"md5:{md5}" for md5 in _CIFAR10.values()),
)
CIFAR100 = Source(
    title="CIFAR-100",
    # not ".": the names "train" and "test" are too general
    folders=("cifar100", "cifar100/cifar-100-python", "cifar-100-python"),
    files=(("train", "test"),),
    remote=(
        Remote(
            name="cifar-100-python.tar.gz",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
            checksum="md5:eb9058c3a382ffc7106e4002c42a8d85",
        ),
    ),
    archive_folder="cifar-100-python",
    checksums=("md5:16019d7e3df5f24257cddd939b257f8d", "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),
)


def _cifar_n(size: int, sha256: str) -> Source:
    """Return the source of CIFAR-N. The authors publish no checksum: these are recorded by other users of the files."""
    name = f"CIFAR-{size}_human.pt"
    hosts = (
        "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/",
        "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/",
    )
    return Source(
        title=f"CIFAR-{size}N",
        folders=("cifar-n", f"cifar{size}n", "CIFAR-N", "cifar10n", f"cifar{size}", "."),
        files=((name,), (f"cifar{size}n_labels.npz",)),
        remote=(Remote(name=name, urls=tuple(host + name for host in hosts), checksum=f"sha256:{sha256}"),),
    )


CIFAR10N = _cifar_n(10, "873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310")
CIFAR100N = _cifar_n(100, "bd2d80409754d420292d622e15e25248ba21e37d27429efac49c8da723f44394")
WEBVISION = Source(
    title="WebVision 1.0",
    folders=("webvision14", "webvision", "WebVision", "."),
    files=(("info/train_filelist_google.txt", "info/val_filelist.txt", "info/synsets.txt"),),
    also=" and the images they list",
)
