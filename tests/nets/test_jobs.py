from dataclasses import replace

import pytest
import torch

from purereplay.nets.jobs import (
    Contrastive,
    ContrastiveJob,
    Listed,
    ListedJob,
    Supervised,
    SupervisedJob,
    first_of_its_kind,
)
from purereplay.nets.networks import MLP, Head, Network

NETWORK = Network(MLP(4, (3,)), Head(2))
IMAGES = torch.arange(48, dtype=torch.uint8).view(12, 1, 2, 2)
OWN = {"phase": "test", "network": NETWORK, "state": NETWORK.init(0), "images": IMAGES, "seed": 1}
CONTRASTIVE = ContrastiveJob(recipe=Contrastive(epochs=5, batch_size=4), replay=IMAGES[:2], **OWN)
SUPERVISED = SupervisedJob(recipe=Supervised(epochs=5, batch_size=4), labels=torch.arange(12) % 2, **OWN)
LISTED = ListedJob(
    recipe=Listed(batch_size=3),
    labels=torch.arange(12) % 2,
    index=torch.arange(30).view(10, 3) % 12,
    lrs=torch.full((10,), 0.1),
    extra={"weights": torch.ones(12)},
    **OWN,
)
JOBS = {"contrastive": CONTRASTIVE, "supervised": SUPERVISED, "listed": LISTED}
every_job = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


def older(job):
    return replace(job, optimizer={"step": torch.tensor(7)})


def test_steps_are_counted():
    assert [job.n_steps for job in JOBS.values()] == [15, 15, 10]
    assert [job.steps_before for job in (LISTED, older(LISTED))] == [0, 7]


@every_job
@pytest.mark.parametrize("n_steps", [3, 6])
def test_a_shortened_job_is_the_same_with_fewer_steps(job, n_steps):
    short = job.shortened(n_steps)
    assert short.n_steps == n_steps and type(short) is type(job)
    assert torch.equal(short.images, job.images) and short.seed == job.seed


def test_shapes_tell_apart_what_needs_another_loop():
    others = [
        replace(CONTRASTIVE, replay=None),
        replace(CONTRASTIVE, replay=IMAGES[:3]),
        replace(CONTRASTIVE, images=IMAGES[:8]),
        replace(CONTRASTIVE, images=IMAGES.float()),
        replace(SUPERVISED, recipe=replace(SUPERVISED.recipe, lr=1.0)),
        replace(LISTED, index=LISTED.index[:, :2]),
        replace(LISTED, index=LISTED.index.repeat(20, 1)),  # longer than the loop can hold
        replace(LISTED, extra={}),
    ]
    shapes = [job.shape for job in (*JOBS.values(), *others)]
    assert len(set(shapes)) == len(shapes)
    assert LISTED.shape == LISTED.shortened(4).shape == replace(LISTED, lrs=LISTED.lrs / 2).shape


def test_jobs_of_one_kind_share_step_count_and_schedule_unless_they_are_listed():
    assert CONTRASTIVE.kind != replace(CONTRASTIVE, start=3).kind
    assert CONTRASTIVE.shape == replace(CONTRASTIVE, start=3).shape
    assert [job.kind == older(job).kind for job in JOBS.values()] == [False, False, True]


@every_job
def test_only_equal_requests_are_trained_once(job):
    named = job.tensors()
    copy = replace(job, images=job.images.clone(), state={n: t.clone() for n, t in job.state.items()})
    others = [replace(job, seed=2), replace(job, images=job.images // 2), older(job)]
    others += [replace(job, **{n: named[n].flip(0)}) for n in ("replay", "labels", "index") if n in named]
    if "lrs" in named:
        others += [replace(job, lrs=job.lrs / 2), replace(job, extra={"weights": torch.zeros(12)})]
    assert first_of_its_kind([job, *others, copy]) == [*range(len(others) + 1), 0]
    with_moments = replace(older(job), optimizer={"step": torch.tensor(7), "mean.x": torch.ones(1)})
    assert first_of_its_kind([older(job), with_moments, older(job)]) == [0, 1, 0]
