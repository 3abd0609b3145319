import pytest
import torch

from purereplay.data.seeds import derive_seed
from purereplay.learners.baselines.consolidation import Consolidation, fisher
from purereplay.learners.baselines.ewc import Elastic
from purereplay.nets import draws
from purereplay.nets.networks import MLP, Head, Network, State, is_trained, stack
from purereplay.nets.resnet import ResNet18
from purereplay.nets.technique import Step, plain_loss

NETWORKS = {
    "mlp": Network(MLP(16, (6, 5)), Head(3)),
    "resnet": Network(ResNet18(channels=1, size=4, stem="small", width=2), Head(3)),
}


def some_images(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (n, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def a_step(network: Network, state: State, extra: State) -> Step:
    images, labels = torch.rand(1, 5, 1, 4, 4), torch.randint(0, 3, (1, 5))
    first = (torch.tensor([1]), torch.tensor([0]), torch.tensor([0.0]), torch.tensor([True]))
    return Step(network, state, images, labels, labels, *first, extra)


@pytest.mark.parametrize("kind", NETWORKS)
def test_fisher_is_the_mean_square_of_single_samples_gradients(kind):
    network, images = NETWORKS[kind], some_images(11)
    weights = network.init(0)
    found = fisher(network, weights, images, seed=4)
    u = draws.uniforms(torch.tensor([4]), torch.tensor(0), 11, stream=6)[0]
    expected: State = {n: torch.zeros_like(t, dtype=torch.double) for n, t in weights.items() if is_trained(n)}
    for i in range(11):
        state = {n: t.clone()[None].requires_grad_(is_trained(n)) for n, t in weights.items()}
        log_p = network.outputs(state, images[i][None, None].float() / 255)[0, 0].log_softmax(0)
        label = int((log_p.exp().cumsum(0) < u[i]).sum())
        for name, g in zip(expected, torch.autograd.grad(-log_p[label], [state[n] for n in expected]), strict=True):
            expected[name] += g[0].double().square() / 11
    assert set(found) == set(expected)
    for name, t in found.items():
        torch.testing.assert_close(t.double(), expected[name], rtol=1e-3, atol=1e-8)


def test_labels_are_drawn_from_the_networks_own_predictions():
    """With the label drawn from p, the expectation of a squared gradient of a bias of the head is p (1 − p)."""
    network = NETWORKS["mlp"]
    weights = network.init(1)
    images = some_images(1).expand(4000, 1, 4, 4)
    p = network.outputs(stack([weights]), images[:1][None].float() / 255)[0, 0].softmax(0)
    found = fisher(network, weights, images, seed=9)["head.output.bias"]
    torch.testing.assert_close(found, p * (1 - p), rtol=0.1, atol=0)


def test_many_parabolas_are_one():
    """The penalty's gradient is that of the sum over all tasks, each around its own weights."""
    network = NETWORKS["mlp"]
    consolidation = Consolidation(8, some_images(0))
    behind = []
    for task in range(3):
        weights = network.init(task)
        consolidation.saw(some_images(20, task))
        assert torch.equal(consolidation.images, some_images(20, task)[-8:])
        behind.append((fisher(network, weights, consolidation.images, derive_seed(1, "fisher", task)), weights))
        consolidation.end_task(network, weights, seed=1)
        assert len(consolidation.images) == 0
    now = {n: t[None].clone().requires_grad_() for n, t in network.init(9).items()}
    extra = {n: t[None] for n, t in consolidation.extra(network.init(9)).items()}
    one = a_step(network, now, extra)
    found = torch.autograd.grad(Elastic(strength=30.0).loss(one).sum(), list(now.values()))
    penalty = sum((f[n] * (now[n][0] - w[n]).square()).sum() for f, w in behind for n in now)
    expected = torch.autograd.grad(plain_loss(one).sum() + 30 / 2 * penalty, list(now.values()))
    for g, e in zip(found, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-3, atol=1e-6)


def test_before_the_first_tasks_end_nothing_is_held():
    network = NETWORKS["mlp"]
    weights = network.init(0)
    extra = {n: t[None] for n, t in Consolidation(8, some_images(0)).extra(weights).items()}
    now = {n: t[None] for n, t in weights.items()}
    one = a_step(network, now, extra)
    assert torch.equal(Elastic(strength=1e6).loss(one), plain_loss(one))


def test_no_weight_is_pulled_past_where_it_is_held():
    """However strong the penalty, a step of descent ends where the weight is held, plus the loss's own step."""
    network, rate = NETWORKS["mlp"], 0.2
    consolidation = Consolidation(8, some_images(0))
    consolidation.saw(some_images(8))
    held = network.init(0)
    consolidation.end_task(network, held, seed=1)
    now = {n: t[None].clone().requires_grad_() for n, t in network.init(9).items()}
    one = a_step(network, now, {n: t[None] for n, t in consolidation.extra(network.init(9)).items()})
    found = torch.autograd.grad(Elastic(strength=1e9, most=1 / rate).loss(one).sum(), list(now.values()))
    plain = torch.autograd.grad(plain_loss(one).sum(), list(now.values()))
    for (n, w), g, p in zip(now.items(), found, plain, strict=True):
        stiff = 1e9 * consolidation.stiffness[n][None] > 1 / rate
        after, expected = w - rate * g, held[n][None] - rate * p
        torch.testing.assert_close(after[stiff], expected[stiff], rtol=1e-4, atol=1e-5)
        assert stiff.any()
