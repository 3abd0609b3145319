"""The joint loss in the plain loop and the CPU's against one sample after another, and the moving average."""

import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Joint, JointJob
from purereplay.nets.loops.cpu_mlp import CpuMlpLoop
from purereplay.nets.loops.plain import PlainLoop
from purereplay.nets.networks import MLP, Head, Network, is_trained
from purereplay.nets.resnet import ResNet18
from purereplay.nets.steps import draw_numbers, draw_rows, two_views

CPU = torch.device("cpu")
N, HELD, CAPACITY, CLASSES = 8, 5, 7, 4
RECIPE = Joint(
    epochs=2,
    batch_size=4,
    replay_size=3,
    lr=1e-2,
    schedule="constant",
    contrastive=0.7,
    delayed=1.3,
    purified=0.6,
    distillation=0.4,
)


def make_job(k: int = 0, recipe: Joint = RECIPE, *, backbone=None, shape=(1, 5, 6), with_replay=True) -> JointJob:
    generator = torch.Generator().manual_seed(40 + k)
    images, replay = (torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator) for n in (N, CAPACITY))
    network = Network(backbone or MLP(30, (16, 12)), Head(6, hidden=True), n_classes=CLASSES)
    state = network.init(k)
    for name in ("classes.weight", "classes.bias"):
        state[name] = torch.randn(state[name].shape, generator=generator)
    delayed_labels, replay_labels = torch.arange(N) % 2, torch.arange(CAPACITY) % 3
    weights = torch.cat([torch.rand(N, generator=generator), torch.ones(CAPACITY)])
    allowed = torch.tensor([[True, True, False, False], [True, True, True, False]])
    n = N + CAPACITY if with_replay else N
    return JointJob(
        phase="test",
        network=network,
        state=state,
        recipe=recipe,
        images=images,
        replay=replay if with_replay else None,
        seed=900 + k,
        labels=torch.cat([delayed_labels, replay_labels])[:n],
        weights=weights[:n],
        allowed=allowed,
        average={name: t + 1 for name, t in state.items()},
        held=HELD if with_replay else 0,
        remembered=torch.randn(n, CLASSES, generator=generator),
        known=torch.tensor([True, True, False, False]),
    )


@pytest.fixture(params=["plain", "cpu_mlp"], autouse=True)
def loop(request, monkeypatch):
    """Trains every test's jobs by one of the two loops."""
    monkeypatch.setitem(globals(), "new_loop", LOOPS[request.param])


LOOPS = {"plain": lambda jobs: PlainLoop(jobs, CPU, "float32"), "cpu_mlp": CpuMlpLoop}
new_loop = LOOPS["plain"]


def train(jobs: list[JointJob]):
    loop = new_loop(jobs)
    loop.load(jobs)
    for _ in range(jobs[0].n_steps):
        loop.advance(1)
    return loop.answers(time.perf_counter())


def obvious_step(job: JointJob, state, step: int):
    """Loss of one step, one view after another."""
    recipe, network = job.recipe, job.network
    keys, number = torch.tensor([job.seed]), torch.tensor([step])
    index = draw_rows(recipe, N, job.n_replay, torch.tensor([job.n_held]), keys, number)[0]
    numbers = draw_numbers(recipe, index.shape[1], keys, number)[0]
    views = two_views(recipe, job.pool()[None].float() / 255, index, numbers)
    z, logits = (t[0] for t in network.both_outputs({n: t[None] for n, t in state.items()}, views, training=True))
    z = F.normalize(z, dim=1)
    rows = [*index[0].tolist()] * 2
    loss, half = 0.0, len(rows) // 2
    sums, totals = [0.0, 0.0], [0.0, 0.0]
    for i, row in enumerate(rows):
        others = [j for j in range(len(rows)) if j != i]
        similar = torch.stack([z[i] @ z[j] / recipe.temperature for j in others])
        partner = others.index((i + half) % len(rows))
        loss = loss - recipe.contrastive * torch.log_softmax(similar, 0)[partner] / len(rows)
        which = 0 if i % half < recipe.batch_size else 1
        classes = [c for c in range(CLASSES) if job.allowed[which, c]]
        chances = torch.log_softmax(logits[i, classes], 0)
        sums[which] = sums[which] - float(job.weights[row]) * chances[classes.index(int(job.labels[row]))]
        totals[which] += float(job.weights[row])
        if which == 1 and job.known[job.labels[row]]:
            errors = (logits[i] - job.remembered[row])[job.known].square()
            loss = loss + recipe.distillation * errors.mean() / (2 * recipe.replay_size)
    loss = loss + recipe.delayed * sums[0] / max(1.0, totals[0])
    return loss + recipe.purified * sums[1] / max(1.0, totals[1]) if recipe.replay_size else loss


@pytest.mark.parametrize("with_replay", [True, False], ids=["D and P", "D alone"])
def test_the_loss_is_that_of_one_sample_after_another(with_replay):
    recipe = RECIPE if with_replay else replace(RECIPE, replay_size=0)
    job = make_job(recipe=recipe, with_replay=with_replay)
    [trained] = train([job])
    state = {name: t.clone().requires_grad_() for name, t in job.state.items()}
    average = {name: t.clone() for name, t in job.average.items()}
    adam = torch.optim.Adam(state.values(), lr=recipe.lr)
    for step in range(job.n_steps):
        loss = obvious_step(job, state, step)
        adam.zero_grad()
        loss.backward()
        adam.step()
        average = {name: 0.99 * t + 0.01 * state[name].detach() for name, t in average.items()}
    assert trained.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    for name, t in state.items():
        assert (trained.state[name] - t).norm() <= 1e-2 * (t - job.state[name]).norm() + 1e-6, name
        torch.testing.assert_close(trained.extra[name], average[name], rtol=1e-4, atol=1e-4)


def test_a_network_does_not_depend_on_its_company_nor_on_how_full_p_is_elsewhere():
    full = replace(make_job(1), held=CAPACITY)
    jobs = [make_job(0), full]
    for together, job in zip(train(jobs), jobs, strict=True):
        [alone] = train([job])
        assert alone.loss == pytest.approx(together.loss, rel=1e-5)
        for name in alone.state:
            torch.testing.assert_close(alone.state[name], together.state[name], rtol=1e-3, atol=1e-4)


def test_empty_places_of_p_are_never_seen():
    job = make_job()
    other = replace(job, replay=torch.cat([job.replay[:HELD], 255 - job.replay[HELD:]]))
    assert train([job])[0].loss == train([other])[0].loss
    everything = replace(job, held=CAPACITY)
    assert train([job])[0].loss != train([everything])[0].loss


@pytest.mark.parametrize("part", ["contrastive", "delayed", "purified", "distillation"])
def test_every_part_of_the_loss_counts_and_can_be_switched_off(part):
    job = make_job()
    [both], [without] = train([job]), train([make_job(recipe=replace(RECIPE, **{part: 0.0}))])
    assert both.loss != without.loss
    [changed] = train([make_job(recipe=replace(RECIPE, delayed=0.0, purified=0.0, distillation=0.0))])
    assert torch.equal(changed.state["classes.weight"], job.state["classes.weight"])


def test_the_statistics_of_batch_norm_are_averaged_too():
    job = make_job(backbone=ResNet18(channels=1, size=8, width=4), shape=(1, 8, 8))
    [trained] = Engine(CPU).train([job])
    names = [name for name in trained.extra if not is_trained(name)]
    assert names
    for name in names:
        assert not torch.equal(trained.extra[name], job.average[name])
        assert not torch.equal(trained.extra[name], trained.state[name])


def test_steps_are_counted_whichever_parameter_comes_first():
    job = make_job(recipe=replace(RECIPE, contrastive=0.0))
    head_first = dict(sorted(job.state.items(), key=lambda item: not item[0].startswith("head.")))
    for state in (job.state, head_first):
        [trained] = train([replace(job, state=state)])
        assert int(trained.optimizer["step"]) == job.n_steps  # the head has no gradient, and Adam skips it
