"""The written-out step against the plain loop's autograd, and what threads must not change."""

import math
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Contrastive, ContrastiveJob, Joint, JointJob
from purereplay.nets.loops import cpu_mlp, cpu_mlp_step
from purereplay.nets.loops.cpu_mlp import CpuMlpLoop, can_train
from purereplay.nets.loops.plain import PlainLoop
from purereplay.nets.networks import MLP, Head, Network
from purereplay.nets.resnet import ResNet18
from purereplay.nets.views import FeatureViews, Views

CPU = torch.device("cpu")
ALL = Contrastive(epochs=6, batch_size=12, lr=1e-3, warm_epochs=1)
HALVES = Contrastive(epochs=3, batch_size=6, replay_size=6, lr=1e-3)
VECTORS = replace(ALL, views=FeatureViews(7, dropout=0.2, noise=0.3))
LABELS = Joint(epochs=3, batch_size=6, replay_size=6, lr=1e-3, distillation=0.5)
COLOUR = replace(ALL, views=Views(jitter=(0.5, 0.5, 0.5, 0.2)))


@pytest.fixture
def threads():
    """Sets the number of threads, and sets it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def make_jobs(k, recipe=ALL, head=None, shape=(1, 6, 7), normalised=False, hidden=(16, 20)) -> list[ContrastiveJob]:
    generator = torch.Generator().manual_seed(7)
    channels = shape[0]
    scale = {"mean": (0.4,) * channels, "std": (0.3,) * channels} if normalised else {}
    network = Network(MLP(math.prod(shape), hidden), head or Head(8, hidden=True), **scale)
    jobs = []
    for i in range(k):
        images, replay = (torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator) for n in (12, 9))
        if isinstance(recipe.views, FeatureViews):
            images, replay = (torch.randn(n, *shape, generator=generator) for n in (12, 9))
        more = {"replay": replay} if recipe.replay_size else {}
        own = {"network": network, "state": network.init(i), "recipe": recipe, "images": images, "seed": 50 + i}
        if not isinstance(recipe, Joint):
            jobs.append(ContrastiveJob(phase="test", **own, **more))
            continue
        labelled = replace(network, n_classes=4)
        own |= {"network": labelled, "state": labelled.init(i), "average": labelled.init(i)}
        labels = torch.arange(12 + 9 * bool(more)) % 3
        own |= {"labels": labels, "weights": torch.rand(len(labels), generator=generator), "held": 7 * bool(more)}
        own["allowed"] = torch.tensor([[True, True, True, False]] * 2)
        own["remembered"] = torch.randn(len(labels), 4, generator=generator)
        own["known"] = torch.tensor([True, False, True, False])
        jobs.append(JointJob(phase="test", **own, **more))
    return jobs


def train(loop, jobs):
    loop.load(jobs)
    done = 0
    while done < jobs[0].n_steps:
        done += loop.advance(jobs[0].n_steps - done)
    assert done == jobs[0].n_steps
    return loop.answers(time.perf_counter())


def same_bits(some, others):
    for a, b in zip(some, others, strict=True):
        assert a.loss == b.loss
        for ours, theirs in ((a.state, b.state), (a.optimizer, b.optimizer), (a.extra, b.extra)):
            assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def close(some, others, jobs):
    """Networks went the same way. Not each weight: Adam makes a whole step of a gradient that is all rounding."""
    for a, b, job in zip(some, others, jobs, strict=True):
        assert math.isclose(a.loss, b.loss, rel_tol=1e-4)
        assert a.optimizer.keys() == b.optimizer.keys() and int(a.optimizer["step"]) == int(b.optimizer["step"])
        for name, t in b.state.items():
            assert (a.state[name] - t).norm() <= 1e-2 * (t - job.state[name]).norm(), name
            assert (a.state[name] - t).abs().median() <= 1e-6, name
            for moment in (f"mean.{name}", f"square.{name}"):
                expected = b.optimizer[moment]
                assert (a.optimizer[moment] - expected).norm() <= 2e-3 * expected.norm(), moment
        for name, t in b.extra.items():  # the moving average
            torch.testing.assert_close(a.extra[name], t, rtol=1e-4, atol=1e-5)


CASES = {
    "all of D": {},
    "halves of D and P": {"recipe": HALVES},
    "distinct replay": {"recipe": replace(HALVES, replay_distinct=True)},
    "linear head": {"head": Head(8)},
    "one hidden layer": {"hidden": (16,)},
    "wide projections": {"head": Head(40, hidden=True)},
    "colours": {"recipe": COLOUR, "shape": (3, 6, 6)},
    "colours without jitter": {"shape": (3, 5, 6)},
    "normalised": {"normalised": True},
    "feature vectors": {"recipe": VECTORS, "shape": (7, 1, 1)},
    "one feature": {"recipe": replace(VECTORS, views=FeatureViews(1)), "shape": (1, 1, 1)},
    "labels": {"recipe": LABELS},
    "labels of D alone": {"recipe": replace(LABELS, replay_size=0)},
    "labels without NT-Xent": {"recipe": replace(LABELS, contrastive=0.0, distillation=0.0)},
    "labels of colours": {"recipe": replace(LABELS, views=COLOUR.views), "shape": (3, 6, 6), "normalised": True},
    "labels of vectors": {"recipe": replace(LABELS, views=VECTORS.views), "shape": (7, 1, 1), "hidden": (16,)},
    "another temperature": {"recipe": replace(ALL, temperature=0.1)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("k", [1, 3])
def test_steps_equal_the_plain_loops(case, k, threads):
    jobs = make_jobs(k, **CASES[case])
    plain = train(PlainLoop(jobs, CPU, "float32"), jobs)
    for n_threads in (1, 2):
        threads(n_threads)
        close(train(CpuMlpLoop(jobs), jobs), plain, jobs)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_one_step_is_autograds(case):
    """Adam's first mean is a tenth of the gradient."""
    jobs = [replace(job, recipe=replace(job.recipe, epochs=1)) for job in make_jobs(2, **CASES[case])]
    plain, ours = PlainLoop(jobs, CPU, "float32"), CpuMlpLoop(jobs)
    for loop in (plain, ours):
        loop.load(jobs)
        loop.advance(1)
    for a, b in zip(ours.answers(0.0), plain.answers(0.0), strict=True):
        for name in a.state:
            expected = b.optimizer[f"mean.{name}"]
            error = (a.optimizer[f"mean.{name}"] - expected).norm()
            assert error <= 1e-3 * expected.norm() + 1e-9


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="TorchScript does not promise to work there")
@pytest.mark.parametrize("case", CASES)
def test_compiled_steps_have_the_same_bits(case, monkeypatch):
    jobs = make_jobs(2, **CASES[case])
    compiled = CpuMlpLoop(jobs)
    functions = [
        compiled.steps,
        compiled.step,
        *([compiled.joint_steps, compiled.joint_step] if compiled.taught else []),
    ]
    assert all(isinstance(f, torch.jit.ScriptFunction) for f in functions)
    monkeypatch.setattr(cpu_mlp, "compiled", lambda function: function)
    same_bits(train(compiled, jobs), train(CpuMlpLoop(jobs), jobs))


def test_what_cannot_be_compiled_runs_as_it_is(caplog):
    def not_for_torchscript():
        yield 1

    assert cpu_mlp_step.compiled(not_for_torchscript) is not_for_torchscript
    assert cpu_mlp_step.compiled(not_for_torchscript) is not_for_torchscript
    assert caplog.text.count("could not be compiled") == 1


@pytest.mark.parametrize("k", [2, 5, 8])
def test_threads_share_any_number_of_networks(k, threads, monkeypatch):
    monkeypatch.setattr(cpu_mlp, "_STEPS_PER_TURN", 2)
    jobs = make_jobs(k)
    threads(1)
    alone = [train(CpuMlpLoop([job]), [job])[0] for job in jobs]
    threads(2)
    loop = CpuMlpLoop(jobs)
    first = train(loop, jobs)
    assert len(loop.workspaces) == 2
    same_bits(first, alone)
    for _ in range(3):
        same_bits(train(CpuMlpLoop(jobs), jobs), first)
    same_bits(train(loop, jobs), first)
    assert torch.get_num_threads() == 2 and threading.active_count() == 1


def test_few_networks_on_many_threads_have_several_each(threads):
    threads(4)
    seen = []

    class Seen(cpu_mlp._WorkQueue):
        def work(self, workspace):
            super().work(workspace)
            seen.append(torch.get_num_threads())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_mlp, "_WorkQueue", Seen)
        jobs = make_jobs(2)
        train(CpuMlpLoop(jobs), jobs)
    assert set(seen) == {2} and torch.get_num_threads() == 4


def test_a_loop_that_is_used_again_remembers_nothing(threads):
    threads(2)
    jobs, others = make_jobs(3, HALVES), [replace(j, seed=9 + j.seed) for j in make_jobs(3, HALVES)]
    loop = CpuMlpLoop(jobs)
    first = train(loop, jobs)
    train(loop, others)
    same_bits(train(loop, jobs), first)
    threads(1)
    same_bits(train(loop, jobs), train(CpuMlpLoop(jobs), jobs))


def test_the_optimizer_goes_on(threads):
    threads(2)
    jobs = make_jobs(3)
    first = train(CpuMlpLoop(jobs), jobs)
    onward = [replace(j, state=t.state, optimizer=t.optimizer, start=2) for j, t in zip(jobs, first, strict=True)]
    close(train(CpuMlpLoop(onward), onward), train(PlainLoop(onward, CPU, "float32"), onward), onward)


def test_an_interrupt_leaves_no_thread_at_work(threads):
    threads(2)

    def stop(progress):
        assert 0 < progress.done < progress.total
        raise InterruptedError

    jobs = make_jobs(3, replace(ALL, epochs=100_000))
    engine = Engine(CPU, watch=stop)
    with pytest.raises(InterruptedError):
        engine.train(jobs)
    assert threading.active_count() == 1 and torch.get_num_threads() == 2
    engine.watch = None
    short = make_jobs(3)
    close(engine.train(short), train(PlainLoop(short, CPU, "float32"), short), short)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_in_a_thread_surfaces(which, error, threads, monkeypatch):
    threads(2)
    jobs = make_jobs(2, replace(ALL, epochs=100_000))
    loop = CpuMlpLoop(jobs)
    loop.load(jobs)
    loop.advance(1)

    taken, turn = [0, 0], loop._run_steps

    def fail(workspace, k, first, n_steps):
        if k == which:
            raise error("here")
        time.sleep(0.01)
        turn(workspace, k, first, n_steps)
        taken[k] += n_steps

    monkeypatch.setattr(loop, "_run_steps", fail)
    monkeypatch.setattr(cpu_mlp, "_STEPS_PER_TURN", 1)
    with pytest.raises(error):
        loop.advance(31)
    assert threading.active_count() == 1 and torch.get_num_threads() == 2
    assert taken[which] == 0 and taken[1 - which] < 20  # the other did not go on to its end


def test_a_call_returns_after_about_half_a_second():
    jobs = make_jobs(2, replace(ALL, epochs=100_000))
    loop = CpuMlpLoop(jobs)
    loop.load(jobs)
    loop.advance(1)
    for seconds, n in ((0.2, 2), (0.5, 1), (7, 1), (1e-9, 3)):
        loop.step_seconds = seconds  # what the last step took
        assert loop.advance(3) == n
    assert loop.step_seconds < 1  # measured anew


@pytest.mark.parametrize("recipe", [ALL, LABELS])
def test_the_loop_is_chosen_for_perceptrons_in_full_precision(recipe):
    [job] = make_jobs(1, recipe)
    resnet = Network(ResNet18(channels=1, size=6, stem="small", width=4), Head(8))
    assert can_train(job) and not can_train(replace(job, network=resnet, state=resnet.init(0)))
    engines = {precision: Engine(CPU, precision=precision) for precision in ("float32", "tf32")}
    for engine in engines.values():
        engine.train([job])
    kinds = {precision: type(next(iter(engine._loops.values()))) for precision, engine in engines.items()}
    assert kinds == {"float32": CpuMlpLoop, "tf32": PlainLoop}
