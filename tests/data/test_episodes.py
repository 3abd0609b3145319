"""Episodes: A is the paper's, B and C are what the recorded draw gives, and each uses every class once."""

import itertools

import pytest

from purereplay.data.catalogue import CIFAR100_SUPERCLASS, INFOS
from purereplay.data.episodes import EPISODES, RECORDED, draw_classes, group, tasks_for, tasks_version
from purereplay.errors import UserError

SYMMETRIC_A = ((7, 6), (2, 3), (0, 1), (5, 9), (8, 4))


@pytest.mark.parametrize("key", RECORDED)
@pytest.mark.parametrize("episode", ["B", "C"])
def test_recorded_episodes_are_drawn_again(key: tuple[str, str], episode: str) -> None:
    if key[1] == "asymmetric":  # pairs stay together, their order is drawn
        pairs = RECORDED[key]["A"]
        order = draw_classes(*key, episode, n_classes=len(pairs))
        assert RECORDED[key][episode] == tuple(pairs[i] for i in order)
        return
    n_classes = INFOS[key[0]].n_classes
    assert RECORDED[key][episode] == group(draw_classes(*key, episode, n_classes=n_classes), 2)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_asymmetric_tasks_hold_the_pairs_of_episode_a(dataset: str) -> None:
    pairs = {frozenset(task) for task in tasks_for(dataset, "asymmetric", "A")}
    for episode in ("B", "C"):
        assert {frozenset(task) for task in tasks_for(dataset, "asymmetric", episode)} == pairs
    assert len({tasks_for(dataset, "asymmetric", episode) for episode in EPISODES}) == 3


def test_tasks_that_changed_have_another_version() -> None:
    assert tasks_version("mnist", "asymmetric", "B") == tasks_version("cifar100", "symmetric", "A") == 2
    unchanged = [("mnist", "asymmetric", "A"), ("mnist", "symmetric", "B"), ("cifar100", "symmetric", "B")]
    unchanged += [("cifar100", "superclass", "A"), ("cifar10n", "none", "A")]
    assert {tasks_version(*key) for key in unchanged} == {1}


@pytest.mark.parametrize(("dataset", "episode"), list(itertools.product(INFOS, EPISODES)))
@pytest.mark.parametrize("noise", ["none", "symmetric", "asymmetric", "superclass"])
def test_every_class_is_in_one_task(dataset: str, episode: str, noise: str) -> None:
    try:
        tasks = tasks_for(dataset, noise, episode)
    except UserError:
        family = dataset.partition("-")[0]
        known = {"asymmetric": ("digits", "mnist", "cifar10", "cifar10n"), "superclass": ("cifar100", "cifar100n")}
        assert family not in known.get(noise, INFOS)
        return
    assert sorted(c for task in tasks for c in task) == list(range(INFOS[dataset].n_classes))
    n_tasks = {10: 5, 14: 7, 100: 20}[INFOS[dataset].n_classes]
    assert len(tasks) == n_tasks
    assert len({len(task) for task in tasks}) == 1


def test_episode_a_is_the_papers() -> None:
    for dataset in ("mnist", "digits", "cifar10", "cifar10n", "cifar10n-aggregate"):
        assert tasks_for(dataset, "symmetric", "A") == tasks_for(dataset, "none", "A") == SYMMETRIC_A
    assert tasks_for("mnist", "asymmetric", "A") == ((2, 7), (3, 8), (5, 6), (0, 9), (4, 1))
    assert tasks_for("cifar10", "asymmetric", "A") == ((9, 1), (2, 0), (3, 5), (6, 8), (4, 7))
    assert tasks_for("webvision14", "none", "A")[:3] == ((7, 2), (11, 1), (8, 13))


def test_episodes_differ() -> None:
    for dataset in ("mnist", "cifar10", "cifar100", "webvision14"):
        assert len({tasks_for(dataset, "none", episode) for episode in EPISODES}) == 3


def test_cifar100_tasks() -> None:
    for episode in EPISODES:
        for task in tasks_for("cifar100", "superclass", episode):
            assert len({CIFAR100_SUPERCLASS[c] for c in task}) == 1
    released = tasks_for("cifar100", "symmetric", "A")
    assert released[0] == (65, 22, 46, 73, 61) and released[-1] == (89, 85, 64, 49, 52)
    assert tasks_for("cifar100", "symmetric", "B")[0] == (
        25,
        52,
        27,
        84,
        46,
    )  # recorded: a change of the draw must show
    assert tasks_for("cifar100n", "none", "B") == tasks_for("cifar100", "symmetric", "B")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match="'D'"):
        tasks_for("mnist", "symmetric", "D")
    with pytest.raises(UserError, match="superclass"):
        tasks_for("mnist", "superclass", "A")
    with pytest.raises(UserError, match="fashion"):
        tasks_for("fashion", "symmetric", "A")
