from dataclasses import replace

import pytest
import torch

from purereplay.errors import Interrupted, UserError
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Contrastive, ContrastiveJob
from purereplay.nets.lockstep import Account, drive, drive_together
from purereplay.nets.networks import MLP, Head, Network

CPU = torch.device("cpu")
NETWORK = Network(MLP(36, (16, 16)), Head(8, hidden=True))


def job(k: int, recipe: Contrastive, **more) -> ContrastiveJob:
    generator = torch.Generator().manual_seed(100 + k)
    images = torch.randint(0, 256, (12, 1, 6, 6), dtype=torch.uint8, generator=generator)
    own = {"phase": "test", "network": NETWORK, "state": NETWORK.init(k), "images": images, "seed": 1000 + k}
    return ContrastiveJob(recipe=recipe, **own, **more)


def test_drive_answers_every_request():
    def work():
        [one] = yield [job(0, Contrastive(epochs=1, batch_size=12))]
        two, three = yield [job(k, Contrastive(epochs=2, batch_size=12)) for k in (1, 2)]
        return [int(t.optimizer["step"]) for t in (one, two, three)]

    account = Account()
    assert drive(work(), Engine(CPU), account) == [1, 2, 2]
    assert account.steps == {"test": 5} and account.seconds["test"] > 0


def test_those_who_drift_apart_fall_into_lockstep_again():
    """Each round of training, by how many networks were in it; the second learner has one job more on its way."""
    groups = []

    class Counting(Engine):
        def _train_group(self, jobs):
            groups.append((jobs[0].recipe.epochs, len(jobs)))
            return super()._train_group(jobs)

    def work(k: int, detour: bool):
        state, optimizer = None, None
        for i in range(4):
            if detour and i == 1:
                yield [job(k, Contrastive(epochs=1, batch_size=12))]
            one = job(k, Contrastive(epochs=2, batch_size=12), optimizer=optimizer, start=i)
            [trained] = yield [one if state is None else replace(one, state=state)]
            state, optimizer = trained.state, trained.optimizer
        return float(state["head.output.bias"].sum())

    together = drive_together([work(0, False), work(1, True)], Counting(CPU), [Account(), Account()])
    assert groups == [(2, 2), (1, 1), (2, 2), (2, 2), (2, 2)]
    assert together == pytest.approx([drive(work(0, False), Engine(CPU)), drive(work(1, True), Engine(CPU))], rel=1e-4)


def test_an_interruption_reaches_every_learner():
    heard = []

    def stop(now):
        raise Interrupted("Stopped.")

    def work(k: int):
        try:
            yield [job(k, Contrastive(epochs=100_000, batch_size=12))]
        except Interrupted:
            heard.append(k)
            raise

    with pytest.raises(Interrupted):
        drive_together([work(0), work(1)], Engine(CPU, watch=stop), [Account(), Account()])
    assert heard == [0, 1]


def test_who_diverges_or_fails_does_not_stop_the_others():
    asked = []

    def work(k: int, rate: float, fails: bool = False):
        for i in range(3):
            [trained] = yield [job(k, Contrastive(epochs=4, batch_size=12, lr=rate))]
            asked.append((k, i))
            if fails:
                raise UserError(f"Learner {k} has had enough.")
        return trained.loss

    works = [work(0, 1e-3), work(1, 1e30), work(2, 1e-3), work(3, 1e-3, fails=True)]
    with pytest.raises(UserError, match=r"2 of 4 runs failed: .*(diverged: lower its learning rate|had enough)\."):
        drive_together(works, Engine(CPU), [Account() for _ in range(4)])
    assert [i for k, i in asked if k == 0] == [i for k, i in asked if k == 2] == [0, 1, 2]
    assert not any(k == 1 for k, _ in asked)
    with pytest.raises(UserError, match=r"^The training of the test network diverged"):
        drive(work(1, 1e30), Engine(CPU))
