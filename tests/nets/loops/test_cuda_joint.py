"""Joint jobs in the loop of kernels against the plain loop; in Triton's interpreter where there is no GPU."""

import os
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from purereplay.nets.jobs import Contrastive, ContrastiveJob, Joint, JointJob
from purereplay.nets.loops.cuda.heads import MAX_CLASSES
from purereplay.nets.loops.cuda.loop import CudaLoop, can_train, cuda_bytes
from purereplay.nets.loops.plain import PlainLoop
from purereplay.nets.networks import MLP, Backbone, Head, Network, is_trained
from purereplay.nets.resnet import ResNet18

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
N, HELD, CAPACITY = 8, 5, 7
RECIPE = Joint(
    epochs=1,
    batch_size=4,
    replay_size=3,
    lr=1e-3,
    schedule="constant",
    contrastive=0.7,
    delayed=1.3,
    purified=0.6,
    average=0.9,
)


def make_job(
    k: int,
    recipe: Joint = RECIPE,
    *,
    backbone: Backbone | None = None,
    shape: tuple[int, int, int] = (1, 5, 6),
    n_classes: int = 4,
    n: int = N,
    capacity: int = CAPACITY,
    held: int = HELD,
    hidden: bool = True,
    weight: float = 1.0,
) -> JointJob:
    """A job whose P has empty places; classes 0 and 1 are in D, the last class is in neither."""
    generator = torch.Generator().manual_seed(40 + k)
    size = n + capacity
    images = torch.randint(0, 256, (size, *shape), dtype=torch.uint8, generator=generator)
    network = Network(backbone or MLP(30, (24, 20)), Head(6, hidden=hidden), n_classes=n_classes)
    state = network.init(k)
    for name in ("classes.weight", "classes.bias"):
        state[name] = torch.randn(state[name].shape, generator=generator)
    delayed, purified = torch.arange(n) % 2, torch.arange(capacity) % (n_classes - 1)
    classes = torch.arange(n_classes)
    return JointJob(
        phase="test",
        network=network,
        state=state,
        recipe=recipe,
        images=images[:n],
        replay=images[n:] if capacity else None,
        seed=900 + k,
        labels=torch.cat([delayed, purified]),
        # some samples without a weight, whose label may be any
        weights=weight * torch.rand(size, generator=generator) * (torch.arange(size) % 5 != 0),
        allowed=torch.stack([classes < 2, classes < n_classes - 1]),
        average={name: t + 1 for name, t in state.items()},
        held=held,
        remembered=torch.randn(size, n_classes, generator=generator),
        known=classes % 2 == k % 2,  # read with distillation only
    )


def train(loop, jobs):
    loop.load(jobs)
    left = jobs[0].n_steps
    while left:
        left -= loop.advance(left)
    return loop.answers(0.0)


def plain(jobs, precision="float32"):
    return train(PlainLoop(jobs, DEVICE, precision), jobs)


def kernels(jobs, dtype=torch.float32):
    assert can_train(jobs[0])
    return train(CudaLoop(jobs, DEVICE, dtype), jobs)


def assert_same(want, got, tolerance=2e-3):
    for x, y in zip(want, got, strict=True):
        assert y.loss == pytest.approx(x.loss, rel=tolerance)
        for theirs, ours in ((x.state, y.state), (x.optimizer, y.optimizer), (x.extra, y.extra)):
            assert theirs.keys() == ours.keys() and theirs
            for name in theirs:
                torch.testing.assert_close(ours[name], theirs[name], rtol=tolerance, atol=tolerance * 1e-2, msg=name)


def assert_equal(a, b):
    assert a.loss == b.loss
    for ours, theirs in ((a.state, b.state), (a.optimizer, b.optimizer), (a.extra, b.extra)):
        assert ours.keys() == theirs.keys() and ours
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


CASES = {
    "P not full": {},
    "weights that sum up to less than 1": {"weight": 0.1},
    "more of P than of D, full": {"recipe": replace(RECIPE, replay_size=9), "capacity": 20, "held": 20},
    "D alone": {"recipe": replace(RECIPE, replay_size=0), "capacity": 0, "held": 0},
    "all of D, distinct P": {"recipe": replace(RECIPE, batch_size=20, replay_distinct=True)},
    "no contrastive": {"recipe": replace(RECIPE, contrastive=0.0)},
    "no labels": {"recipe": replace(RECIPE, delayed=0.0, purified=0.0)},
    "no labels of D": {"recipe": replace(RECIPE, delayed=0.0, contrastive=0.0)},
    "20 classes, linear head": {"n_classes": 20, "hidden": False},
    "300 classes": {"n_classes": 300, "capacity": 12},
    "distillation": {"recipe": replace(RECIPE, distillation=0.8)},
    "distillation alone, 20 classes": {
        "recipe": replace(RECIPE, delayed=0.0, purified=0.0, contrastive=0.0, distillation=0.8),
        "n_classes": 20,
        "capacity": 19,
        "held": 19,
    },
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_do_what_autograd_does(case):
    jobs = [make_job(k, **CASES[case]) for k in range(2)]
    want, got = plain(jobs), kernels(jobs)
    assert_same(want, got)


@pytest.mark.long
@pytest.mark.parametrize("untrained", ["head.", "classes."])
def test_training_continues_and_a_part_without_a_loss_is_left_alone(untrained):
    """Adam does not even let the moments of a layer decay if no loss depends on it."""
    off = {"contrastive": 0.0} if untrained == "head." else {"delayed": 0.0, "purified": 0.0}
    jobs = []
    for k, trained in enumerate(plain([make_job(0), make_job(1)])):
        more = {"state": trained.state, "optimizer": trained.optimizer, "average": trained.extra, "seed": 30 + k}
        jobs.append(replace(make_job(k, replace(RECIPE, **off)), **more))
    got = kernels(jobs)
    assert_same(plain(jobs), got)
    for job, trained in zip(jobs, got, strict=True):
        assert int(trained.optimizer["step"]) == 4
        names = [name for name in job.state if name.startswith(untrained)]
        assert names and job.optimizer["mean." + names[0]].any()
        for name in names:
            assert torch.equal(trained.state[name].cpu(), job.state[name].cpu())
            for moment in ("mean.", "square."):
                assert torch.equal(trained.optimizer[moment + name].cpu(), job.optimizer[moment + name].cpu())


def resnet_job(k: int, stem: str, **more) -> JointJob:
    backbone = ResNet18(channels=3, size=8, width=4, stem=stem)
    recipe = replace(RECIPE, batch_size=2, replay_size=2)
    job = make_job(k, more.pop("recipe", recipe), backbone=backbone, shape=(3, 8, 8), n_classes=20, n=2, **more)
    return replace(job, network=replace(job.network, mean=(0.5,) * 3, std=(0.2,) * 3))


def assert_resnet_step(want, got, tolerance):
    """Compare one step from moments 0: `mean.` is a tenth of the gradient."""
    for x, y in zip(want, got, strict=True):
        assert y.loss == pytest.approx(x.loss, rel=tolerance)
        assert x.state.keys() == y.state.keys() == x.extra.keys() == y.extra.keys()
        assert x.optimizer.keys() == y.optimizer.keys()
        for name in (n for n in x.optimizer if n.startswith("mean.")):
            theirs, ours = x.optimizer[name], y.optimizer[name]
            assert (ours - theirs).norm() <= 10 * tolerance * theirs.norm() + 1e-6, name
        for name in x.state:
            for theirs, ours in ((x.state[name], y.state[name]), (x.extra[name], y.extra[name])):
                assert ours.shape == theirs.shape
                # a step of Adam has the size of the learning rate, whatever the gradient
                near = 2.1 * RECIPE.lr if is_trained(name) else 1e-4
                torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=near, msg=name)


@pytest.mark.long
@pytest.mark.parametrize(("stem", "k"), [pytest.param("small", 1, marks=pytest.mark.slow), ("imagenet", 2)])
def test_resnets_go_the_same_way(stem, k):
    jobs = [resnet_job(i, stem) for i in range(k)]
    assert_resnet_step(plain(jobs), kernels(jobs), 1e-3)


@pytest.mark.slow
def test_the_average_is_taken_after_every_step_also_of_statistics_and_of_unused_taps():
    """Against a sum over the states after each step, all from the same loop."""
    job = resnet_job(0, "imagenet", recipe=replace(RECIPE, epochs=2, batch_size=2, contrastive=0.0))
    loop = CudaLoop([job], DEVICE, torch.float32)
    loop.load([job])
    average = {name: t.clone() for name, t in job.average.items()}
    for _ in range(job.n_steps):
        loop.advance(1)
        [trained] = loop.answers(0.0)
        average = {name: 0.9 * t + 0.1 * trained.state[name].cpu() for name, t in average.items()}
    assert job.n_steps == 2
    for name, t in average.items():
        torch.testing.assert_close(trained.extra[name].cpu(), t, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
def test_a_network_depends_neither_on_its_company_nor_on_chunks():
    jobs = [make_job(0), make_job(1, held=CAPACITY)]
    together = kernels(jobs)
    for job, answer in zip(jobs, together, strict=True):
        [alone] = kernels([job])
        assert_equal(alone, answer)
    loop = CudaLoop([jobs[0]], DEVICE, torch.float32)
    loop.chunk = 1
    for _ in range(2):  # a loop that is used again remembers nothing
        assert_equal(train(loop, [jobs[0]])[0], together[0])


@pytest.mark.long
def test_a_contrastive_job_keeps_the_classes_of_its_network():
    joint = make_job(0)
    recipe = Contrastive(epochs=1, batch_size=4, lr=1e-3)
    own = {name: getattr(joint, name) for name in ("phase", "network", "state", "images", "seed")}
    job = ContrastiveJob(recipe=recipe, **own)
    [want], [got] = plain([job]), kernels([job])
    assert want.state.keys() == got.state.keys() and want.optimizer.keys() == got.optimizer.keys()
    assert torch.equal(got.state["classes.weight"].cpu(), job.state["classes.weight"])
    assert got.extra == {}


def test_jobs_that_do_not_fit_are_left_to_the_plain_loop():
    job = make_job(0)
    assert can_train(job)
    assert can_train(make_job(0, n_classes=MAX_CLASSES)) and not can_train(make_job(0, n_classes=MAX_CLASSES + 1))
    assert not can_train(replace(job, network=replace(job.network, n_classes=0)))
    assert not can_train(replace(job, replay=None))
    assert not can_train(replace(job, recipe=replace(RECIPE, replay_size=9, replay_distinct=True)))


def test_the_memory_includes_the_average():
    joint = make_job(0)
    own = ("phase", "network", "state", "images", "seed", "recipe", "replay")
    same = ContrastiveJob(**{name: getattr(joint, name) for name in own})
    assert cuda_bytes(joint) - cuda_bytes(same) == 4 * sum(t.numel() for t in joint.state.values())


def distance(trained, want, part: str) -> float:
    """Relative distance of Adam's first moments of a part: of the gradients."""
    names = [name for name in want.optimizer if name.startswith(f"mean.{part}")]
    ours, theirs = (torch.cat([t.optimizer[name].flatten() for name in names]) for t in (trained, want))
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-6))


def assert_as_near_as_autocast(jobs, dtype=torch.bfloat16):
    """The kernels' bfloat16 may be twice as far from float32 as that of PyTorch's autocast."""
    for got, lower, want in zip(kernels(jobs, dtype), plain(jobs, "bf16"), plain(jobs), strict=True):
        assert got.loss == pytest.approx(want.loss, rel=2e-2)
        for part in ("head.", "classes.", "backbone."):
            assert distance(got, want, part) <= 2 * distance(lower, want, part) + 0.03, part
        assert got.extra.keys() == want.extra.keys()
        for name in want.extra:
            torch.testing.assert_close(got.extra[name], want.extra[name], rtol=1e-2, atol=5e-3, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_do_what_autograd_does_on_a_gpu(case):
    jobs = [make_job(k, **CASES[case]) for k in range(2)]
    assert_same(plain(jobs), kernels(jobs))


BACKBONES = {
    "perceptron": MLP(3 * 32 * 32, (128, 128)),
    "small": ResNet18(channels=3, size=32, width=16, stem="small"),
    "imagenet": ResNet18(channels=3, size=32, width=16, stem="imagenet"),
}


def large_job(k: int, which: str, epochs: int = 1) -> JointJob:
    """A job of enough samples that a single ReLU, which rounding switches, does not matter."""
    recipe = replace(RECIPE, epochs=epochs, batch_size=40, replay_size=40)
    backbone = BACKBONES[which]
    return make_job(k, recipe, backbone=backbone, shape=(3, 32, 32), n_classes=100, n=40, capacity=60, held=50)


@pytest.mark.gpu
@pytest.mark.parametrize("which", BACKBONES)
def test_in_bfloat16_the_kernels_are_near_autograd(which):
    jobs = [large_job(k, which) for k in range(2)]
    assert_as_near_as_autocast(jobs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_graphs_of_any_length_and_company_give_the_same_bits(dtype):
    jobs = [large_job(k, "small", epochs=7) for k in range(3)]
    loop = CudaLoop(jobs, DEVICE, dtype)
    loop.chunk = 3
    first, again = train(loop, jobs), train(loop, jobs)
    assert set(loop.graphs) == {3, 1}
    whole = kernels(jobs, dtype)
    for k, job in enumerate(jobs):
        [alone] = kernels([job], dtype)
        for other in (again[k], whole[k], alone):
            assert_equal(first[k], other)
