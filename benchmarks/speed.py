"""Speed on this machine, beside a plain implementation of the same work in the same call.

    python benchmarks/speed.py                          everything, row by row: ten minutes on a GPU or two cores
    python benchmarks/speed.py --only training --json new.json
    python benchmarks/speed.py --compare old.json new.json

training  a contrastive step of K networks side by side (views, forward, loss, backward, Adam): milliseconds per step,
          network-steps per second, the speed-up over a plain eager loop over the networks, and on the CPU the
          share of the measured rate of matrix products. A case that would take minutes is skipped and
          marked; --limit 3600 measures it too.
joint     the same for a step of Pure Replay's base: NT-Xent, two cross-entropies and the moving average.
baselines a step of K ResNet-18s on 20 images of CIFAR-10 size, as in crs, mir and crs with l2r or jocor: milliseconds
          per network; for crs also the speed-up over a plain eager loop over the networks.
filter    one call of the Self-Centered filter on a buffer, two labels, 5 graphs, 128-d features; plain: numpy, scipy.
demo      a whole run of the demo, in seconds.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from plain import PlainTraining, perceptron, plain_clean_probability, resnet18
from purereplay.evaluate.running import run
from purereplay.evaluate.settings import resolve
from purereplay.learners.baselines.mir import Interference
from purereplay.learners.robust.jocor import JoCoR, Twins
from purereplay.learners.robust.l2r import LearningToReweight
from purereplay.learners.spr.settings import PRESETS
from purereplay.nets.device import pick_device, pick_precision
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Contrastive, ContrastiveJob, Joint, JointJob, Listed, ListedJob
from purereplay.nets.networks import MLP, Head, Network
from purereplay.nets.resnet import ResNet18
from purereplay.nets.views import Views
from purereplay.purify.self_centered import clean_probability

Row = dict[str, object]
N_NETWORKS = (1, 5, 8, 25, 200)
FILTER_SIZES = (300, 500, 1000, 5000)
PLAIN_FILTER_UP_TO = 1000  # the plain code would take minutes beyond
TURN_SECONDS = 1.5  # seconds of training between two measurements of the plain loop
LIMIT_SECONDS = 20.0  # a case is skipped if four of its steps take longer
DEMO_WIDTH: int = PRESETS["demo"]["hidden"]
JITTER = Views(jitter=(0.5, 0.5, 0.5, 0.2))


class Case:
    """A network and the images of one delayed buffer."""

    def __init__(
        self,
        name: str,
        network: Network,
        shape: tuple[int, int, int],
        n: int,
        plain: Callable,
        *,
        with_replay: bool = False,  # a base's step: half of D, half of P
        batch: int | None = None,  # images of a step; None: all
    ) -> None:
        self.name, self.network, self.n, self.plain, self.with_replay = name, network, n, plain, with_replay
        self.batch = batch or n
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator)
        self.views = JITTER if shape[0] == 3 else Views()

    @property
    def is_joint(self) -> bool:
        """Whether the network also learns labels."""
        return self.network.n_classes > 0

    def jobs(self, k: int, epochs: int, device: torch.device) -> list[ContrastiveJob]:
        recipe = Contrastive(epochs=epochs, batch_size=self.batch, views=self.views)
        if self.with_replay:
            recipe = replace(recipe, batch_size=self.batch // 2, replay_size=self.batch // 2)
        images = self.images.to(device)
        replay = images if self.with_replay else None
        states = [self.network.fresh(i, device) for i in range(k)]
        own = {"phase": "bench", "network": self.network, "recipe": recipe, "images": images, "replay": replay}
        if not self.is_joint:
            return [ContrastiveJob(state=state, seed=i, **own) for i, state in enumerate(states)]
        own["recipe"] = Joint(**{f.name: getattr(recipe, f.name) for f in fields(recipe)})
        labels = (torch.arange(2 * self.n) % 10).to(device)
        own |= {"labels": labels, "weights": torch.ones(2 * self.n, device=device), "held": self.n}
        own["allowed"] = torch.ones(2, 10, dtype=torch.bool, device=device)
        return [JointJob(state=state, average=state, seed=i, **own) for i, state in enumerate(states)]

    def multiplications(self) -> float | None:
        """Floating-point operations of the perceptron's products in one step; None for a ResNet."""
        backbone = self.network.backbone
        if not isinstance(backbone, MLP):
            return None
        width, n_views = backbone.hidden[-1], 2 * self.batch
        first = backbone.n_inputs * backbone.hidden[0]
        weights = first + width * width * 2 + width * (256 + self.network.n_classes)
        # forward, gradients of the weights, gradients of all inputs but the first layer's; the same for similarities
        return 2 * n_views * (3 * weights - first) + 2 * 3 * n_views**2 * 256


CASES = [
    Case(
        "mlp digits",
        Network(MLP(64, (DEMO_WIDTH, DEMO_WIDTH)), Head(256, hidden=True)),
        (1, 8, 8),
        100,
        lambda: perceptron(64, DEMO_WIDTH),
    ),
    Case(
        "mlp digits, wide",
        Network(MLP(64, (256, 256)), Head(256, hidden=True)),
        (1, 8, 8),
        100,
        lambda: perceptron(64, 256),
    ),
    Case("mlp mnist", Network(MLP(784), Head(256, hidden=True)), (1, 28, 28), 300, lambda: perceptron(784, 512)),
    Case(
        "mlp mnist, base",
        Network(MLP(784), Head(256, hidden=True)),
        (1, 28, 28),
        300,
        lambda: perceptron(784, 512),
        with_replay=True,
    ),
    Case("resnet18", Network(ResNet18(), Head(256, hidden=True)), (3, 32, 32), 500, lambda: resnet18("imagenet")),
    Case(
        "resnet18 3x3",
        Network(ResNet18(stem="small"), Head(256, hidden=True)),
        (3, 32, 32),
        500,
        lambda: resnet18("small"),
    ),
]
JOINT_CASES = [
    Case(name, replace(network, n_classes=10), shape, n, plain, with_replay=True, batch=batch)
    for name, network, shape, n, plain, batch in (
        ("joint, digits", CASES[0].network, (1, 8, 8), 100, CASES[0].plain, 100),
        ("joint, mnist", CASES[2].network, (1, 28, 28), 300, CASES[2].plain, 300),
        ("joint, resnet18 3x3, batch 128", CASES[5].network, (3, 32, 32), 500, CASES[5].plain, 128),
        ("joint, resnet18 3x3, batch 500", CASES[5].network, (3, 32, 32), 500, CASES[5].plain, 500),
    )
]


def seconds(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def matrix_rate() -> float:
    """Return the floating-point operations per second of a large float32 product on the CPU: the best of three."""
    a = torch.randn(2048, 2048)
    return 2 * 2048**3 / min(seconds(lambda: a @ a, torch.device("cpu")) for _ in range(3))


def training(cases: list[Case], device: torch.device, precision: str, limit: float) -> Iterator[Row]:
    for case in cases:
        images = case.images[: case.batch].to(device)
        labels = (torch.arange(len(images)) % 10).to(device) if case.is_joint else None
        plain = PlainTraining(case.plain(), images, labels)
        seconds(plain.step, device)
        plain_step = each = seconds(plain.step, device)
        for k in N_NETWORKS:
            row: Row = {"case": case.name, "networks": k, "ms_a_step": None, "network_steps_a_second": None}
            row |= {"ratio": None, "of_matrix_rate": None}
            if 4 * k * each <= limit:
                step, ratio, rate = side_by_side(case, k, plain, plain_step, device, precision)
                each = step / k  # seconds per network: the next row takes about as long
                work = case.multiplications()
                row["ms_a_step"], row["network_steps_a_second"] = round(1e3 * step, 4), round(k / step, 1)
                row["ratio"] = round(ratio, 2)
                row["of_matrix_rate"] = round(k * work / step / rate, 3) if work and rate else None
            yield row


def side_by_side(
    case: Case, k: int, plain: PlainTraining, plain_step: float, device: torch.device, precision: str
) -> tuple[float, float, float | None]:
    """Return the best seconds per step of k networks, the ratio of plain steps to it, and the CPU's best product rate.

    Both kinds of steps are measured in turns. The ratio is the median over turns, since the load of a shared machine
    varies.
    """
    engine = Engine(device, precision=pick_precision(precision, device.type))
    on_cuda = device.type == "cuda"
    few = case.jobs(k, 10 if on_cuda else 2, device)
    engine.train(few)  # warm-up: memory, compilation, capture
    one = seconds(lambda: engine.train(few), device) / few[0].n_steps
    # a job of a run has hundreds or thousands of steps, so its beginning and end are negligible
    least, most = (min(100, int(LIMIT_SECONDS / one)), 2000) if on_cuda else (20 if one < 1 else 2, 200)
    n_steps = max(2, least, min(most, int(TURN_SECONDS / one)))
    n_plain = max(2, min(100, int(0.5 / plain_step)))
    epochs = max(1, n_steps // few[0].steps_per_epoch)
    jobs = [replace(job, recipe=replace(job.recipe, epochs=epochs)) for job in few]
    engine.train(jobs)
    ours, others, rates = [], [], []
    for _ in range(3 if on_cuda or n_steps * one > 2 * TURN_SECONDS else 5):
        ours.append(seconds(lambda: engine.train(jobs), device) / jobs[0].n_steps)
        others.append(seconds(lambda: [plain.step() for _ in range(n_plain)], device) / n_plain)
        rates += [] if on_cuda else [matrix_rate()]
    ratio = statistics.median(k * other / own for own, other in zip(ours, others, strict=True))
    return min(ours), ratio, max(rates, default=None)


def baselines(device: torch.device, precision: str) -> Iterator[Row]:
    """Measure steps of the online baselines on 10 incoming and 10 replayed images."""
    network = Network(ResNet18(), Head(10))
    clean = {"clean_images": random_images(200), "clean_labels": torch.arange(200) % 10}
    cases: list[tuple[str, Network, dict[str, Any], dict[str, Tensor]]] = [
        ("crs", network, {}, {}),
        ("mir", network, {"choice": Interference(n_incoming=10, n_replayed=10)}, {}),
        ("crs + l2r", network, {"technique": LearningToReweight()}, clean),
        ("crs + jocor", Twins(ResNet18(), Head(10)), {"technique": JoCoR(forget=0.4)}, {}),
    ]
    plain_network = nn.Sequential(resnet18("imagenet")[:-3], nn.Linear(512, 10)).to(device)  # type: ignore[index]
    optimizer = torch.optim.Adam(plain_network.parameters())
    images, labels = random_images(20).to(device) / 255, (torch.arange(20) % 10).to(device)

    def plain_step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(plain_network(images), labels).backward()
        optimizer.step()

    for name, one, parts, extra in cases:
        for k in (1, 5, 15) if device.type == "cuda" else (1, 5):
            engine = Engine(device, precision=pick_precision(precision, device.type))
            n_steps = 500 if device.type == "cuda" else 8
            jobs = [listed_job(one, i, parts, extra, n_steps, device) for i in range(k)]
            engine.train(jobs)  # warm-up: memory and capture
            ours, others = [], []
            for _ in range(3):
                ours.append(seconds(lambda: engine.train(jobs), device) / n_steps / k)  # noqa: B023
                plain_seconds = seconds(lambda: [plain_step() for _ in range(n_steps // 4)], device)  # noqa: B023
                others.append(plain_seconds / (n_steps // 4))
            ratio = statistics.median(other / own for own, other in zip(ours, others, strict=True))
            row: Row = {"case": name, "networks": k, "ms_a_step": round(1e3 * min(ours) * k, 4)}
            row |= {"ms_a_network": round(1e3 * min(ours), 4), "ratio": round(ratio, 2) if name == "crs" else None}
            yield row


def random_images(n: int) -> Tensor:
    return torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def listed_job(
    network: Network, seed: int, parts: dict[str, Any], extra: dict[str, Tensor], n_steps: int, device: torch.device
) -> ListedJob:
    listed = 60 if "choice" in parts else 20  # mir lists 50 candidates
    generator = torch.Generator().manual_seed(seed)
    return ListedJob(
        phase="bench",
        network=network,
        state={name: t.to(device) for name, t in network.init(seed).items()},
        recipe=Listed(batch_size=20, **parts),
        images=random_images(1000).to(device),
        labels=(torch.arange(1000) % 10).to(device),
        seed=seed,
        index=torch.randint(0, 1000, (n_steps, listed), generator=generator),
        lrs=torch.full((n_steps,), 1e-3),
        extra={name: t.to(device) for name, t in extra.items()},
    )


def made_up_buffer(n: int, seed: int = 0, d: int = 128) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return features (n, d) and labels (n,) of two classes, 60 % of each in a cluster and 40 % scattered."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    clustered = rng.random(n) < 0.6
    features = rng.normal(size=(n, d)) + clustered[:, None] * rng.normal(size=(2, d))[labels]
    return features, labels


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Return the lowest of three medians after a warm-up, since other work on the machine only adds time."""
    work()
    cpu = torch.device("cpu")
    return min(1e3 * statistics.median(seconds(work, cpu) for _ in range(repeats)) for _ in range(3))


def filtering(device: torch.device) -> Iterator[Row]:
    return (filter_row(n, device) for n in FILTER_SIZES)


def filter_row(n: int, device: torch.device) -> Row:
    features, labels = made_up_buffer(n)
    # numpy in, numpy out: the time includes waiting for a GPU
    ours = median_ms(lambda: clean_probability(features, labels, 5, device=device), 9 if n < 5000 else 1)
    plain = None
    if n <= PLAIN_FILTER_UP_TO:
        plain = median_ms(lambda: plain_clean_probability(features, labels, 5), 1)
    ratio = None if plain is None else round(plain / ours, 2)
    return {"case": "filter", "buffer": n, "ms_a_call": round(ours, 2), "ratio": ratio}


def demo(device: torch.device, precision: str) -> Iterator[Row]:
    settings = resolve(dataset="digits", preset_name="demo", device=device.type, precision=precision)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = run(settings, Path(folder) / "run")
        total = time.perf_counter() - began
    shares = {phase: round(s, 2) for phase, s in result["seconds"].items() if phase != "total"}
    yield {"case": "demo", "seconds": round(total, 2), **shares}


def shown(rows: Iterable[Row], case_width: int) -> Iterator[Row]:
    """Print rows as they are measured, aligned below the names of their columns, and return them."""
    columns: tuple[str, ...] = ()
    for row in rows:
        new = tuple(row) != columns
        columns = tuple(row)
        widths = [max(len(c), case_width if c == "case" else 8) for c in columns]
        texts = ["-" if value is None else str(value) for value in row.values()]
        for line in ([""] * len(columns), columns, texts) if new else (texts,):
            print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip(), flush=True)
        yield row


def compare(old: Path, new: Path) -> None:
    """Print the times of two files side by side, and the speed-up of the second."""
    files = [json.loads(path.read_text()) for path in (old, new)]
    if files[0]["machine"] != files[1]["machine"]:
        print(f"The machines differ: {files[0]['machine']} and {files[1]['machine']}.")
    named = [{key(row): row for row in file["rows"]} for file in files]
    rows: list[Row] = []
    for name in named[0].keys() & named[1].keys():
        for column in ("ms_a_step", "ms_a_call", "seconds"):
            before, after = (rows_of[name].get(column) for rows_of in named)
            if before and after:
                case = " ".join(str(part) for part in name if part is not None)
                rows.append({"case": case, "old": before, "new": after, "times faster": round(before / after, 2)})
    rows.sort(key=lambda row: str(row["case"]))
    list(shown(rows, max((len(str(row["case"])) for row in rows), default=0)))


def key(row: Row) -> tuple[object, ...]:
    return row["case"], row.get("networks"), row.get("buffer")


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed, as ratios against plain code in the same call.")
    parser.add_argument(
        "--only", default="training,joint,baselines,filter,demo", help="parts to measure, separated by commas"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--precision", default="auto", help="float32, tf32, bf16 or auto")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        help="training and joint: skip cases whose four steps take longer, in seconds",
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="compare two such files and exit")
    options = parser.parse_args()
    if options.compare:
        compare(*options.compare)
        return
    device = torch.device(pick_device(options.device))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    machine = f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(machine, flush=True)
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "training": lambda: training(CASES, device, options.precision, options.limit),
        "joint": lambda: training(JOINT_CASES, device, options.precision, options.limit),
        "baselines": lambda: baselines(device, options.precision),
        "filter": lambda: filtering(device),
        "demo": lambda: demo(device, options.precision),
    }
    wanted = options.only.split(",")
    if unknown := [part for part in wanted if part not in parts]:
        parser.error(f"--only {unknown[0]} is unknown: choose from {', '.join(parts)}")
    rows: list[Row] = []
    for part in wanted:
        for row in shown(parts[part](), max(len(case.name) for case in (JOINT_CASES if part == "joint" else CASES))):
            rows.append(row)
            if options.json:  # after every row, so that an interruption loses nothing
                options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
        if part in ("training", "joint") and any(row.get("ms_a_step", 0) is None for row in rows):
            print(f"-: skipped, since four steps would take longer than {options.limit:g} s; raise --limit")


if __name__ == "__main__":
    main()
