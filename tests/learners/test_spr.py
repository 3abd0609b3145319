import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from purereplay.data.batch import Batch
from purereplay.data.datasets import given_labels, load
from purereplay.data.episodes import tasks_for
from purereplay.data.seeds import derive_seed
from purereplay.data.streams import Stream
from purereplay.errors import UserError
from purereplay.learners.base import DataSpec
from purereplay.learners.settings import DataFacts, resolve
from purereplay.learners.spr.build import build_spr, make_spr
from purereplay.learners.spr.learner import SPR
from purereplay.learners.spr.settings import SprSettings
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.inference import embed
from purereplay.nets.lockstep import drive
from purereplay.purify.self_centered import score_samples

CPU = torch.device("cpu")
DIGITS = DataSpec(image_shape=(1, 8, 8), n_classes=10)
TINY = SprSettings(
    delayed_size=30,
    purified_size=20,
    network="mlp",
    hidden=16,
    projection_size=8,
    expert_epochs=6,
    base_epochs=4,
    expert_batch=30,
    base_batch=30,
    warm_epochs=1,
    finetune_epochs=3,
)


def learner(settings: SprSettings = TINY, seed: int = 0, engine: Engine | None = None) -> SPR:
    return build_spr(settings, DIGITS, engine=engine or Engine(CPU), seed=seed)


@pytest.fixture(scope="module")
def stream() -> Stream:
    digits = load("digits")
    labels = given_labels(digits, noise="symmetric", rate=0.4, seed=0)
    return Stream(digits.images, labels, tasks=tasks_for("digits", "symmetric"), seed=0)


def same(a: SPR, b: SPR) -> bool:
    ours, theirs = a.state(), b.state()
    return set(ours) == set(theirs) and all(torch.equal(ours[n], theirs[n]) for n in ours)


def close(a: SPR, b: SPR) -> None:
    ours, theirs = a.state(), b.state()
    assert set(ours) == set(theirs)
    for n in ours:
        torch.testing.assert_close(ours[n], theirs[n], rtol=1e-3, atol=1e-4)


def test_the_algorithm_step_by_step(stream):
    ours = learner()
    assert ours.observe(stream.batch(0, 29)) == []  # not full: nothing happens
    [report] = ours.observe(stream.batch(29, 31))
    assert ours.delayed.n == 1 and ours.n_done == 1
    assert report.index.tolist() == stream.order[:30].tolist()
    passed = set(report.index[report.selected_mask].tolist())
    assert set(report.held_index.tolist()) <= passed and len(report.held_index) == min(20, len(passed))
    assert ((report.clean_probability >= 0) & (report.clean_probability <= 1)).all()
    assert not report.selected_mask[report.clean_probability == 0].any()
    assert math.isfinite(report.expert_loss) and math.isfinite(report.base_loss)


def test_batch_size_does_not_matter(stream):
    """Any split of the stream gives the same learner; one by one is the same to the bit as ten by ten."""
    ones, tens, whole = learner(), learner(), learner()
    for i in range(95):
        ones.observe(stream.batch(i, i + 1))
    for i in range(0, 95, 10):
        tens.observe(stream.batch(i, min(i + 10, 95)))
    whole.observe(stream.batch(0, 95))  # three experts side by side
    assert same(ones, tens)
    close(ones, whole)
    assert torch.equal(ones.purified.state()["index"], whole.purified.state()["index"])


def test_same_seed_same_bits(stream):
    a, b, c = learner(seed=1), learner(seed=1), learner(seed=2)
    for ours in (a, b, c):
        ours.observe(stream.batch(0, 70))
    assert same(a, b) and not same(a, c)
    images = torch.from_numpy(load("digits").test_images)
    assert torch.equal(a.classifier().logits(images), b.classifier().logits(images))


def test_state_moves_to_another_learner_at_every_step(stream):
    """Cut the work off at each of its requests, load the state elsewhere, go on there: the end is the same."""
    whole = learner()
    whole.observe(stream.batch(0, 65))
    for cut in range(4):
        ours = learner()
        ours.take(stream.batch(0, 65))
        done = 0
        while ours.pending and done <= cut:
            work = ours.work()
            try:
                request = next(work)
                while True:
                    if done == cut:
                        raise InterruptedError
                    done += 1
                    request = work.send(ours.engine.train(request))
            except StopIteration:
                continue
            except InterruptedError:
                break
        moved = learner()
        moved.load({n: t.clone() for n, t in ours.state().items()})
        while moved.pending:
            drive(moved.work(), moved.engine)
        assert same(moved, whole), f"cut at request {cut}"


def test_buffers_scored_together_get_the_scores_of_buffers_scored_alone(stream):
    """The scores of a queue against each expert's features scored one after the other; no features are kept."""
    ours = learner()
    ours.take(stream.batch(0, 65))
    ours.finish()  # two full buffers and one of five samples
    work = ours.work()
    jobs = next(work)
    trained = ours.engine.train(jobs)
    with pytest.raises(StopIteration):
        work.send(trained)
    for number, (waiting, job, expert) in enumerate(zip(ours.scored, jobs, trained, strict=True)):
        features = embed(ours.network, expert.state, job.images)
        verdict = score_samples(features, waiting.batch.labels, derive_seed(0, "graphs", number))
        assert torch.equal(waiting.clean_probability, verdict.clean_probability)
        assert torch.equal(waiting.centrality, verdict.centrality) and waiting.expert_loss == expert.loss
        assert not any("features" in name for name in waiting.state())
    saved = {name: t for name, t in ours.state().items() if name.startswith("queue.")}
    assert len({t.untyped_storage().data_ptr() for t in saved.values()}) == len(saved)  # no two share memory


def test_weights_drawn_side_by_side_are_those_drawn_alone(stream):
    ours = learner()
    ours.take(stream.batch(0, 90))
    for number, job in enumerate(next(ours.work())):
        alone = ours.network.init(derive_seed(0, "expert weights", number))
        assert all(torch.equal(job.state[name], alone[name]) for name in alone)


@pytest.mark.parametrize("order", ["filter-first", "replay-first"])
def test_order_of_filter_and_replay(stream, order):
    ours = learner(replace(TINY, order=order))
    ours.take(stream.batch(0, 30))
    assert drive(ours.work(), ours.engine) is None  # the expert
    next(ours.work())  # stands at the request for the base
    assert (ours.purified.n > 0) == (order == "filter-first")


def test_base_batches(stream):
    def base_job(settings: SprSettings, n: int):
        ours = learner(settings)
        ours.observe(stream.batch(0, n))
        ours.take(stream.batch(n, n + 30))
        drive(ours.work(), ours.engine)  # the expert
        [job] = next(ours.work())
        return ours, job

    _, early = base_job(TINY, 0)
    assert early.replay is None and early.recipe.batch_size == 30 and early.steps_per_epoch == 1
    ours, late = base_job(TINY, 120)
    assert ours.purified.is_full
    assert (late.recipe.batch_size, late.recipe.replay_size, late.steps_per_epoch) == (15, 15, 2)
    assert late.start == 4 * (4 - 1) and late.optimizer is not None  # the schedule and the optimizer go on
    _, union = base_job(replace(TINY, replay="union", base_schedule="restart"), 120)
    assert union.images.shape[0] == 50 and union.recipe.batch_size == 30 and union.replay is None and union.start == 0
    _, distinct = base_job(replace(TINY, replay="halves-distinct"), 120)
    assert distinct.recipe.replay_distinct


def test_flush_handles_the_tail_or_drops_it(stream):
    processed, dropped = learner(), learner(replace(TINY, tail="drop"))
    for ours in (processed, dropped):
        ours.observe(stream.batch(0, 37))
    [report] = processed.flush()
    assert report.index.shape[0] == 7 and processed.n_done == 2 and processed.flush() == []
    assert dropped.flush() == [] and dropped.n_done == 1 and dropped.delayed.n == 0


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_tiny_tail_is_no_trouble(stream, n):
    ours = learner()
    ours.observe(stream.batch(0, n))
    [report] = ours.flush()
    assert torch.isfinite(report.clean_probability).all()
    assert torch.isfinite(ours.classifier().logits(stream.batch(0, 5).images)).all()


def test_classifier_at_any_moment_and_cached_until_something_changes(stream):
    ours = learner()
    images = stream.batch(0, 5).images
    first = ours.classifier()
    assert first.predict(images).shape == (5,) and first.probabilities(images).sum(1).allclose(torch.ones(5))
    assert ours.classifier() is first
    ours.observe(stream.batch(0, 30))
    second = ours.classifier()
    assert second is not first
    base = {n: t.clone() for n, t in ours.base.items()}
    ours.classifier()
    assert all(torch.equal(base[n], ours.base[n]) for n in base)  # finetuning works on a copy


def test_reseed_draws_the_same_numbers_for_every_buffer(stream):
    batch = stream.batch(0, 30)
    again, fresh = learner(replace(TINY, reseed=True)), learner()
    twice = Batch(*(torch.cat([t, t]) for t in batch))
    a, b = again.observe(twice)
    c, d = fresh.observe(twice)
    assert torch.allclose(a.clean_probability, b.clean_probability)
    assert not torch.allclose(c.clean_probability, d.clean_probability)


@pytest.mark.long
@pytest.mark.parametrize(
    "option",
    [
        {"features": "penultimate"},
        {"graphs": 0},
        {"scaling": "minmax"},
        {"posterior": "table"},
        {"small_class": "keep"},
        {"mixture_steps": 2},
        {"admission": "greedy"},
        {"eviction": "softmax"},
        {"projection": "linear"},
        {"schedule": "constant"},
        {"base_schedule": "restart"},
        {"warm_epochs": 3},
        {"temperature": 0.1},
        {"crop_area": 0.5},
        {"flip": 0.0},
        {"finetune_clip": None},
        {"finetune_clip": 1e-4},
        {"finetune_decay_every": 2},
        {"finetune_lr": 1e-2},
        {"replay": "halves-distinct"},
        {"replay": "union"},
        {"order": "replay-first"},
        {"stem": "small"},
        {"tail": "drop"},
    ],
    ids=str,
)
def test_every_option_changes_the_learner_and_still_learns(stream, option):
    images = stream.batch(0, 50).images
    logits = []
    usual = replace(TINY, expert_epochs=40, lr=3e-3)  # enough for similarities that are not all 1
    for settings in (usual, replace(usual, **option)):
        ours = learner(settings)
        ours.observe(stream.batch(0, 130))
        ours.flush()
        logits.append(ours.classifier().logits(images))
    no_effect = option in ({"stem": "small"}, {"finetune_clip": None}, {"small_class": "keep"})
    # an mlp has no stem, these gradients are never cut, and these buffers have no class of 3
    assert torch.isfinite(logits[1]).all() and torch.equal(*logits) == no_effect


def test_colour_images_take_a_resnet_and_jitter():
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
    settings = replace(TINY, delayed_size=8, network="resnet18", expert_epochs=1, base_epochs=1)
    colour = DataSpec(image_shape=(3, 16, 16), n_classes=2, mean=(0.5,) * 3, std=(0.2,) * 3)
    ours = build_spr(settings, colour, engine=Engine(CPU), seed=0)
    assert ours.buffer_filter.expert.views.jitter == (0.5, 0.5, 0.5, 0.2)
    [report] = ours.observe(Batch(images, torch.tensor([0, 1] * 4), torch.arange(8)))
    assert torch.isfinite(report.clean_probability).all()
    assert ours.classifier().logits(images).shape == (8, 2)


@pytest.mark.parametrize(
    ("images", "labels", "index", "culprit"),
    [
        (torch.zeros(2, 1, 8, 8), [0, 1], [0, 1], "float32"),
        (torch.zeros(2, 1, 8, 9, dtype=torch.uint8), [0, 1], [0, 1], r"\(2, 1, 8, 9\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), [0, 10], [7, 8], "Sample 8 has label 10"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), [0, -1], [7, 8], "Sample 8 has label -1"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), [0], [0], "each of its 2 images"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), [0.0, 1.0], [0, 1], "int64"),
    ],
)
def test_bad_batches_name_the_culprit_and_change_nothing(stream, images, labels, index, culprit):
    ours = learner()
    ours.observe(stream.batch(0, 40))
    before = {n: t.clone() for n, t in ours.state().items()}
    with pytest.raises(UserError, match=culprit):
        ours.observe(Batch(images, torch.tensor(labels), torch.tensor(index)))
    after = ours.state()
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"delayed_size": 0}, "delayed_size must be at least 2"),
        ({"purified_size": 0}, "purified_size must be more than 0"),
        ({"order": "filter_first"}, "filter-first, replay-first"),
        ({"network": "MLP"}, "mlp, resnet18"),
        ({"expert_epochs": 2.5}, "expert_epochs must be a whole number"),
        ({"expert_epochs": -1}, "more than 0"),
        ({"finetune_batch": True}, "finetune_batch must be a whole number"),
        ({"lr": float("nan")}, "lr must be a number"),
        ({"lr": float("inf")}, "lr must be a number"),
        ({"lr": 1e308}, r"lr must be at most 1e\+15"),
        ({"lr": 10**400}, r"lr must be at most 1e\+15"),
        ({"flip": 2}, "at most 1"),
        ({"reseed": 1}, "true or false"),
        ({"colour": 1}, "'colour' is unknown"),
    ],
)
def test_settings_that_cannot_be_are_named(option, sentence):
    with pytest.raises(UserError, match=sentence):
        make_spr((1, 8, 8), 10, **option)


def test_training_that_diverges_is_an_error_and_not_a_number(stream):
    ours = learner(replace(TINY, finetune_lr=1e30, finetune_clip=None, finetune_epochs=20))
    ours.observe(stream.batch(0, 60))
    with pytest.raises(UserError, match="finetune network diverged"):
        ours.classifier()


def test_an_expert_that_diverges_in_its_last_step_is_named(stream):
    """The loss is that before the step, so only the features show it; before, a row of them was blamed."""
    ours = learner(replace(TINY, lr=1e30, expert_epochs=1))
    with pytest.raises(UserError, match="The training of the expert network diverged: lower its learning rate"):
        ours.observe(stream.batch(0, 60))


@pytest.mark.parametrize("images", [torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 9, dtype=torch.uint8), np.zeros(3)])
def test_the_classifier_refuses_what_it_was_not_made_for(stream, images):
    with pytest.raises(UserError, match="Images must be"):
        learner().classifier().predict(images)


def test_a_resnet_learns_from_a_single_purified_sample():
    ours = make_spr((3, 16, 16), 2, delayed_size=6, purified_size=1, expert_epochs=1, base_epochs=1, finetune_epochs=1)
    images = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    ours.observe(Batch(images, torch.zeros(6, dtype=torch.int64), torch.arange(6)))
    assert torch.isfinite(ours.classifier().logits(images)).all()


def test_purer_than_the_stream_and_better_than_guessing():
    """The point of it all, on a small scale: the demo's settings on the first two tasks."""
    digits = load("digits")
    given = given_labels(digits, noise="symmetric", rate=0.4, seed=3)
    stream = Stream(digits.images, given, tasks=tasks_for("digits", "symmetric")[:2], seed=3)
    short = {"expert_epochs": 100, "base_epochs": 20}
    ours = learner(resolve(SprSettings, short, DataFacts((1, 8, 8), buffer_size=100), preset="demo"), seed=3)
    ours.observe(stream.batch(0, len(stream)))
    held, _ = ours.purified.contents()
    noisy = given != digits.true_labels
    assert noisy[held.index].mean() < 0.5 * noisy[stream.order].mean()
    seen = np.isin(digits.test_labels, (7, 6, 2, 3))
    right = ours.classifier().predict(torch.from_numpy(digits.test_images[seen])).numpy() == digits.test_labels[seen]
    assert right.mean() > 0.6


def worked(settings: SprSettings, stream: Stream, end_task: bool = False) -> tuple[SPR, list[str]]:
    """A learner after 60 digits, and the phases that it asked training for."""
    asked: list[str] = []

    class Listening(Engine):
        def train(self, jobs):
            asked.extend(job.phase for job in jobs)
            return super().train(jobs)

    ours = learner(settings, engine=Listening(CPU))
    ours.observe(stream.batch(0, 60))
    if end_task:
        ours.end_task()
        ours._work_through()
    return ours, asked


def test_self_replay_alone_trains_no_experts_and_keeps_a_reservoir(stream):
    ours, asked = worked(replace(TINY, filter="none"), stream)
    assert set(asked) == {"base"} and isinstance(ours.purified, Reservoir)
    assert ours.purified.n == min(60, ours.purified.capacity)
    assert ours.classifier().predict(stream.batch(0, 5).images).shape == (5,)


def test_the_filter_alone_finetunes_from_random_weights(stream):
    ours, asked = worked(replace(TINY, self_replay="never"), stream)
    assert set(asked) == {"expert"}
    fresh = learner(replace(TINY, self_replay="never"))
    assert all(torch.equal(ours.base[name], fresh.base[name]) for name in fresh.base)
    assert ours.purified.n > 0


def test_intermittent_self_replay_waits_for_the_end_of_a_task(stream):
    settings = replace(TINY, self_replay="task-end", replay="purified")
    ours, asked = worked(settings, stream)
    assert set(asked) == {"expert"} and ours.wants_task_ends
    ours, asked = worked(settings, stream, end_task=True)
    assert asked.count("base") == 1 and asked[-1] == "base" and not ours.pending


def test_self_replay_without_d_trains_on_p_alone(stream):
    jobs = []

    class Listening(Engine):
        def train(self, some):
            jobs.extend(job for job in some if job.phase == "base")
            return super().train(some)

    ours = learner(replace(TINY, replay="purified"), engine=Listening(CPU))
    ours.observe(stream.batch(0, 60))
    held = {image.numpy().tobytes() for image in ours.purified.contents()[0].images}
    assert {image.numpy().tobytes() for image in jobs[-1].images} == held and jobs[-1].replay is None


def test_another_filter_replaces_the_experts(stream):
    for kind in ("aum", "incv"):
        ours, asked = worked(replace(TINY, filter=kind, aum_epochs=3, incv_epochs=3), stream)
        assert "expert" not in asked and "filter" in asked and "base" in asked
        assert set(ours.purified.contents()[1].tolist()) <= {1.0}


@pytest.mark.parametrize(
    "change",
    [
        {"filter": "none"},
        {"filter": "aum", "aum_epochs": 3},
        {"filter": "incv", "incv_epochs": 3, "incv_rounds": 2},
        {"self_replay": "never"},
        {"self_replay": "task-end"},
    ],
)
def test_the_state_of_an_ablation_moves_to_another_learner(stream, change):
    settings = replace(TINY, **change)
    one, _ = worked(settings, stream, end_task=change.get("self_replay") == "task-end")
    other = learner(settings)
    other.load(one.state())
    for each in (one, other):
        each.observe(stream.batch(60, 100))
    assert same(one, other)


def test_classes_may_come_that_nobody_spoke_of(stream):
    batch = stream.batch(0, 60)
    few, many = (build_spr(TINY, replace(DIGITS, n_classes=n), engine=Engine(CPU), seed=0) for n in (1, 10))
    with pytest.raises(UserError, match="the known labels are"):
        few.observe(batch)
    few.grow(10)
    for one in (few, many):
        one.observe(batch)
    assert same(few, many)
    assert torch.equal(few.classifier().logits(batch.images), many.classifier().logits(batch.images))
    before = few.classifier()
    few.grow(12)
    assert few.classifier().logits(batch.images).shape == (60, 12) and few.classifier() is not before
    other = build_spr(TINY, replace(DIGITS, n_classes=1), engine=Engine(CPU), seed=0)
    other.load(few.state())
    assert same(other, few) and other.n_classes == 12


def test_a_corrected_sample_goes_into_p_and_changes_the_classifier(stream):
    one = learner()
    one.observe(stream.batch(0, 60))
    before = one.classifier()
    batch = stream.batch(3, 4)
    corrected = Batch(batch.images, (batch.labels + 1) % 10, batch.index)
    one.correct(corrected)
    held, probability = one.purified.contents()
    [place] = (held.index == batch.index).nonzero()[:, 0].tolist()
    assert held.labels[place] == corrected.labels[0] and probability[place] == 1
    assert one.classifier() is not before
    other = learner()
    other.load(one.state())
    assert same(one, other)
    with pytest.raises(UserError, match="the known labels are"):
        one.correct(Batch(batch.images, torch.tensor([10]), batch.index))
    plain = learner(replace(TINY, filter="none"))
    with pytest.raises(UserError, match="need a purified buffer"):
        plain.correct(corrected)
