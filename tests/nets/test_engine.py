import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from purereplay.errors import UserError
from purereplay.nets.engine import Engine, TrainingProgress, equal_share
from purereplay.nets.jobs import Contrastive, ContrastiveJob, DrawnJob, Supervised, SupervisedJob, first_of_its_kind
from purereplay.nets.loops.base import network_bytes
from purereplay.nets.networks import MLP, Head, Network, stack
from purereplay.nets.resnet import ResNet18
from purereplay.nets.steps import contrastive_loss, draw_numbers, draw_rows
from purereplay.nets.views import Views

CPU = torch.device("cpu")
NETWORK = Network(MLP(36, (16, 16)), Head(8, hidden=True))


def job(k: int, recipe: Contrastive | Supervised, n: int = 12, **more) -> DrawnJob:
    generator = torch.Generator().manual_seed(100 + k)
    images = torch.randint(0, 256, (n, 1, 6, 6), dtype=torch.uint8, generator=generator)
    network = more.pop("network", NETWORK)
    kind = ContrastiveJob if isinstance(recipe, Contrastive) else SupervisedJob
    own = {"phase": "test", "network": network, "state": network.init(k), "images": images, "seed": 1000 + k}
    return kind(recipe=recipe, **own, **more)


def test_side_by_side_equals_one_by_one():
    jobs = [job(k, Contrastive(epochs=5, batch_size=6)) for k in range(3)]
    together = Engine(CPU).train(jobs)
    for k in range(3):
        [alone] = Engine(CPU).train([jobs[k]])
        for name in alone.state:
            torch.testing.assert_close(together[k].state[name], alone.state[name], rtol=1e-4, atol=1e-6)
        assert math.isclose(together[k].loss, alone.loss, rel_tol=1e-4)


def test_resnets_side_by_side_equal_one_by_one():
    network = Network(ResNet18(channels=1, size=6, stem="small", width=4), Head(8))
    jobs = [job(k, Contrastive(epochs=2, batch_size=12), network=network) for k in range(2)]

    class Stacking(Engine):
        def side_by_side(self, job):
            return 2

    assert Engine(CPU).side_by_side(jobs[0]) == 1  # slower otherwise
    together = Stacking(CPU).train(jobs)
    for k in range(2):
        [alone] = Engine(CPU).train([jobs[k]])
        for name in alone.state:
            torch.testing.assert_close(together[k].state[name], alone.state[name], rtol=1e-3, atol=1e-5)
        assert not torch.equal(alone.state["backbone.bn1.running_mean"], jobs[k].state["backbone.bn1.running_mean"])


def test_the_loop_equals_adam_written_out():
    recipe = Contrastive(epochs=4, batch_size=12, lr=1e-2, warm_epochs=1)
    one = job(0, recipe)
    [trained] = Engine(CPU).train([one])
    state = {n: t.clone().requires_grad_() for n, t in stack([one.state]).items()}
    images, keys = one.images[None].float() / 255, torch.tensor([one.seed])
    mean, square = ({n: torch.zeros_like(t) for n, t in state.items()} for _ in range(2))
    for step in range(4):
        [index], [numbers] = (
            f(recipe, *n, keys, torch.tensor([step])) for f, n in ((draw_rows, (12, 0, keys)), (draw_numbers, (12,)))
        )
        loss = contrastive_loss(NETWORK, state, recipe, images, index, numbers)
        gradients = dict(zip(state, torch.autograd.grad(loss.sum(), list(state.values())), strict=True))
        rate = 1e-2 * (1 + math.cos(math.pi * max(0, step - 1) / 4)) / 2
        with torch.no_grad():
            for n, g in gradients.items():
                mean[n] = 0.9 * mean[n] + 0.1 * g
                square[n] = 0.999 * square[n] + 0.001 * g * g
                m, s = mean[n] / (1 - 0.9 ** (step + 1)), square[n] / (1 - 0.999 ** (step + 1))
                state[n] -= rate * m / (s.sqrt() + 1e-8)
    for name, t in trained.state.items():
        expected = state[name][0].detach()
        # Adam makes a whole step of a gradient that is all rounding, so single weights may differ by more
        assert (t - expected).norm() <= 2e-3 * (expected - one.state[name]).norm(), name
    assert int(trained.optimizer["step"]) == 4
    torch.testing.assert_close(trained.optimizer["mean.head.output.bias"], mean["head.output.bias"][0])


def test_same_seed_same_bits_other_seed_other_bits():
    recipe = Contrastive(epochs=3, batch_size=4)
    a, b = (Engine(CPU).train([job(0, recipe)])[0] for _ in range(2))
    c = Engine(CPU).train([replace(job(0, recipe), seed=1)])[0]
    assert all(torch.equal(a.state[n], b.state[n]) for n in a.state) and a.loss == b.loss
    assert a.loss != c.loss


def test_a_loop_that_is_used_again_remembers_nothing():
    engine, recipe = Engine(CPU), Contrastive(epochs=3, batch_size=4)
    [first] = engine.train([job(0, recipe)])
    engine.train([job(1, recipe)])
    [again] = engine.train([job(0, recipe)])
    assert all(torch.equal(first.state[n], again.state[n]) for n in first.state)
    assert all(torch.equal(first.optimizer[n], again.optimizer[n]) for n in first.optimizer)


def test_the_job_is_left_as_it_was():
    one = job(0, Contrastive(epochs=2, batch_size=4))
    before = {n: t.clone() for n, t in one.state.items()}
    Engine(CPU).train([one])
    assert all(torch.equal(before[n], one.state[n]) for n in before)


def test_the_optimizer_goes_on():
    recipe = Contrastive(epochs=2, batch_size=12, schedule="constant")
    [first] = Engine(CPU).train([job(0, recipe)])
    onward = replace(job(0, recipe), state=first.state, optimizer=first.optimizer)
    [second] = Engine(CPU).train([onward])
    [fresh] = Engine(CPU).train([replace(onward, optimizer=None)])
    assert int(second.optimizer["step"]) == 4
    assert any(not torch.equal(second.state[n], fresh.state[n]) for n in second.state)


def test_answers_come_in_the_order_of_the_jobs_whatever_the_groups():
    jobs = [job(k, Contrastive(epochs=1 + k % 2, batch_size=4), n=8 + 4 * (k % 3)) for k in range(6)]
    answers = Engine(CPU).train(jobs)
    for one, answer in zip(jobs, answers, strict=True):
        assert int(answer.optimizer["step"]) == one.n_steps
        assert torch.allclose(answer.state["head.output.bias"], one.state["head.output.bias"], atol=0.05)


def test_the_very_same_training_is_done_once():
    recipe = Contrastive(epochs=3, batch_size=6)
    one = job(0, recipe)
    copy = replace(one, images=one.images.clone(), state={n: t.clone() for n, t in one.state.items()})
    darker = replace(one, images=one.images // 2)
    other_seed = replace(one, seed=5)
    other_weights = replace(one, state=NETWORK.init(77))
    jobs = [one, darker, copy, other_seed, other_weights]
    assert first_of_its_kind(jobs) == [0, 1, 0, 3, 4]
    heard = []
    answers = Engine(CPU, watch=lambda p: heard.append(p.n_networks)).train(jobs)
    for mine, asked in zip(answers, jobs, strict=True):
        [alone] = Engine(CPU).train([asked])
        for name in alone.state:
            torch.testing.assert_close(mine.state[name], alone.state[name], rtol=1e-4, atol=1e-6)
    assert answers[0].seconds == answers[2].seconds < answers[1].seconds  # what is shared is booked once


def test_finetuning_learns_the_labels_and_clips():
    network = Network(MLP(36, (16,)), Head(2))
    one = job(0, Supervised(epochs=60, batch_size=4), network=network, labels=torch.arange(12) % 2)
    [trained] = Engine(CPU).train([one])
    logits = network.outputs(stack([trained.state]), one.images[None].float() / 255)[0]
    assert (logits.argmax(-1) == one.labels).all()
    # Adam's first moment can never exceed the cut, and with a tiny cut does not reach what it is without
    [cut] = Engine(CPU).train([replace(one, recipe=Supervised(epochs=1, batch_size=4, clip=1e-6))])
    assert max(float(cut.optimizer[n].abs().max()) for n in cut.optimizer if n.startswith("mean.")) <= 1e-6


def test_replay_images_take_part():
    recipe = Contrastive(epochs=1, batch_size=6, replay_size=6)
    a, b = (job(0, recipe, replay=torch.full((8, 1, 6, 6), v, dtype=torch.uint8)) for v in (0, 200))
    assert Engine(CPU).train([a])[0].loss != Engine(CPU).train([b])[0].loss


def test_self_supervision_brings_views_of_one_image_together():
    grey = torch.linspace(0, 255, 12).to(torch.uint8).view(12, 1, 1, 1).expand(12, 1, 6, 6)  # told apart in any crop
    one = replace(job(0, Contrastive(epochs=200, batch_size=12, lr=3e-3)), images=grey)
    first, last = (Engine(CPU).train([replace(one, recipe=replace(one.recipe, epochs=e))])[0].loss for e in (1, 200))
    assert last < first - 0.3


def test_progress_is_told_and_may_interrupt():
    heard: list[TrainingProgress] = []

    def stop(now: TrainingProgress) -> None:
        heard.append(now)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Engine(CPU, watch=stop).train([job(0, Contrastive(epochs=100_000, batch_size=12))])
    assert heard[0].phase == "test" and 0 < heard[0].done < heard[0].total == 100_000


def test_loops_are_kept_only_within_the_memory_allowed():
    engine = Engine(CPU)
    sizes = [8, 12, 16, 20]
    jobs = {n: job(0, Contrastive(epochs=1, batch_size=n), n=n) for n in sizes}
    engine._memory = network_bytes(jobs[16]) + network_bytes(jobs[20])
    first = {n: engine.train([jobs[n]])[0].loss for n in sizes}
    assert sum(loop.n_bytes for loop in engine._loops.values()) <= engine._memory and len(engine._loops) == 2
    assert {n: engine.train([jobs[n]])[0].loss for n in sizes} == first


def test_running_out_of_memory_halves_the_number_of_networks(caplog):
    tried = []

    class Small(Engine):
        def _train_group(self, jobs):
            tried.append(len(jobs))
            if len(jobs) > 3:
                raise torch.cuda.OutOfMemoryError
            return super()._train_group(jobs)

    jobs = [job(k, Contrastive(epochs=1, batch_size=12)) for k in range(10)]
    answers = Small(CPU).train(jobs)
    assert tried == [10, 5, 2, 2, 2, 2, 2] and "continuing with 5" in caplog.text
    assert [a.loss for a in answers] == pytest.approx([Engine(CPU).train([one])[0].loss for one in jobs], rel=1e-5)


def test_what_does_not_fit_at_once_is_trained_in_goes_of_one_size():
    made = []

    class Few(Engine):
        def side_by_side(self, job):
            return 8

        def _make_room(self, n_bytes):
            made.append(n_bytes)
            super()._make_room(n_bytes)

    jobs = [job(k, Contrastive(epochs=1, batch_size=12)) for k in range(25)]
    engine = Few(CPU)
    answers = engine.train(jobs)
    assert made == [5 * engine.bytes_for(jobs[0])]  # one loop, in five goes; four would be of two sizes
    assert [a.loss for a in answers] == pytest.approx([Engine(CPU).train([one])[0].loss for one in jobs], rel=1e-5)


@pytest.mark.parametrize(
    ("n", "at_most", "share"), [(7, 8, 7), (8, 8, 8), (16, 8, 8), (9, 8, 3), (17, 16, 9), (200, 89, 50), (3, 1, 1)]
)
def test_equal_shares(n, at_most, share):
    assert equal_share(n, at_most) == share


def test_where_the_fast_loop_fails_the_plain_one_serves(caplog):
    class Broken:
        def __init__(self, jobs, device):
            raise RuntimeError("no such instruction")

    jobs = [job(k, Contrastive(epochs=2, batch_size=12)) for k in range(2)]
    engine = Engine(CPU)
    engine._cuda = SimpleNamespace(can_train=lambda _: True, cuda_bytes=network_bytes, CudaLoop=Broken)
    answers = engine.train(jobs)
    assert [r.message for r in caplog.records if "no such instruction" in r.message]
    assert [a.loss for a in answers] == [a.loss for a in Engine(CPU).train(jobs)]
    assert len(caplog.records) == 1 and engine.train(jobs)[0].loss == answers[0].loss  # one warning only


def test_one_network_too_large_for_the_memory_is_a_clear_error():
    class None_(Engine):
        def _train_group(self, jobs):
            raise torch.cuda.OutOfMemoryError

    with pytest.raises(UserError, match="one test network"):
        None_(CPU).train([job(0, Contrastive(epochs=1, batch_size=12))])


def test_memory_of_a_network_grows_with_what_it_holds():
    small, large = (job(0, Contrastive(epochs=1, batch_size=n), n=n) for n in (10, 1000))
    assert network_bytes(small) < network_bytes(large)
    assert 1 <= Engine(CPU).side_by_side(large) <= 16


@pytest.mark.gpu
def test_captured_steps_equal_the_plain_loop_and_repeat_bit_for_bit():
    cuda = torch.device("cuda")
    recipe = Contrastive(epochs=40, batch_size=6, replay_size=6)
    replay = torch.randint(0, 256, (9, 1, 6, 6), dtype=torch.uint8)
    jobs = [job(k, recipe, replay=replay) for k in range(3)]
    on_cpu = Engine(CPU).train(jobs)
    runs = [Engine(cuda).train(jobs) for _ in range(2)]
    for k in range(3):
        assert runs[0][k].loss == runs[1][k].loss
        assert all(torch.equal(runs[0][k].state[n], runs[1][k].state[n]) for n in runs[0][k].state)
        assert math.isclose(runs[0][k].loss, on_cpu[k].loss, rel_tol=2e-2)


@pytest.mark.gpu
def test_resnets_are_captured_and_repeat_bit_for_bit(caplog):
    network = Network(ResNet18(channels=3, size=32, width=16), Head(32, hidden=True), (0.5,) * 3, (0.2,) * 3)
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    recipe = Contrastive(epochs=30, batch_size=20, views=Views(jitter=(0.5, 0.5, 0.5, 0.2)))
    own = {"phase": "test", "network": network, "recipe": recipe, "images": images}
    jobs = [ContrastiveJob(state=network.init(k), seed=k, **own) for k in range(2)]
    runs = [Engine(torch.device("cuda")).train(jobs) for _ in range(2)]
    assert not caplog.records  # no fall-back to the plain loop
    for k in range(2):
        assert runs[0][k].loss == runs[1][k].loss and math.isfinite(runs[0][k].loss)
        assert all(torch.equal(runs[0][k].state[n], runs[1][k].state[n]) for n in runs[0][k].state)
