import pytest
import torch
from torch import nn

from purereplay.nets.networks import MLP, Head, Network, is_trained, stack, unstack
from purereplay.nets.resnet import ResNet18


class Block(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out)
        self.conv2, self.bn2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out)
        self.downsample = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + shortcut).relu()


class PlainResNet(nn.Module):
    """ResNet-18 the usual way, with torchvision's names."""

    def __init__(self, width: int, imagenet: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False) if imagenet else nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1) if imagenet else nn.Identity()
        w = width
        self.layer1 = nn.Sequential(Block(w, w, 1), Block(w, w, 1))
        self.layer2 = nn.Sequential(Block(w, 2 * w, 2), Block(2 * w, 2 * w, 1))
        self.layer3 = nn.Sequential(Block(2 * w, 4 * w, 2), Block(4 * w, 4 * w, 1))
        self.layer4 = nn.Sequential(Block(4 * w, 8 * w, 2), Block(8 * w, 8 * w, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.bn1(self.conv1(x)).relu())
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


@pytest.mark.parametrize("stem", ["imagenet", "small"])
@pytest.mark.parametrize("training", [True, False])
def test_resnet_equals_a_plain_module(stem, training):
    ours = ResNet18(size=32, stem=stem, width=8)
    states = [ours.init(torch.Generator().manual_seed(s)) for s in range(2)]
    images = torch.rand(2, 6, 3, 32, 32)
    stacked = stack(states)
    features = ours.features(stacked, images, training=training)
    assert features.shape == (2, 6, ours.n_features)
    for k in range(2):
        plain = PlainResNet(8, stem == "imagenet").train(training)
        missing, unexpected = plain.load_state_dict(states[k], strict=False)
        assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)
        torch.testing.assert_close(features[k], plain(images[k]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(stacked["bn1.running_var"][k], plain.bn1.running_var)


@pytest.mark.parametrize(
    ("stem", "size"), [("imagenet", 32), ("imagenet", 12), ("small", 8), ("small", 7), ("small", 5)]
)
def test_resnets_together_equal_those_one_after_the_other(stem, size, monkeypatch):
    resnet = ResNet18(size=size, stem=stem, width=4)
    images = torch.rand(3, 5, 3, size, size, dtype=torch.float64)

    def results(together):
        monkeypatch.setattr(ResNet18, "_is_faster_together", lambda *_: together)
        states = [resnet.init(torch.Generator().manual_seed(s)) for s in range(3)]
        state = {name: t.double() for name, t in stack(states).items()}
        parameters = [t.requires_grad_() for name, t in state.items() if is_trained(name)]
        features = resnet.features(state, images, training=True)
        gradients = torch.autograd.grad(features.square().sum(), parameters, create_graph=True)
        curvature = torch.autograd.grad(sum(g.square().sum() for g in gradients), parameters)  # as L2R needs
        statistics = [t for name, t in state.items() if not is_trained(name)]
        return [features, *gradients, *curvature, *statistics]

    for ours, expected in zip(results(True), results(False), strict=True):
        torch.testing.assert_close(ours, expected)


def test_resnet18_has_the_known_number_of_parameters():
    state = ResNet18(size=32).init(torch.Generator())
    assert sum(t.numel() for name, t in state.items() if is_trained(name)) == 11_176_512


def test_mlp_side_by_side_equals_plain_layers():
    network = Network(MLP(12, (7, 5)), Head(3, hidden=True))
    states = [network.init(seed) for seed in range(3)]
    images = torch.rand(3, 4, 1, 3, 4)
    outputs = network.outputs(stack(states), images)
    for k, s in enumerate(states):
        x = images[k].flatten(1)
        for name in ("backbone.layer1", "backbone.layer2", "head.hidden"):
            x = (x @ s[f"{name}.weight"] + s[f"{name}.bias"]).relu()
        torch.testing.assert_close(outputs[k], x @ s["head.output.weight"] + s["head.output.bias"])


def test_initialisation_is_that_of_a_linear_layer_and_follows_the_seed():
    network = Network(MLP(784, (512, 512)), Head(256))
    a, b, c = network.init(1), network.init(1), network.init(2)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["backbone.layer1.weight"], c["backbone.layer1.weight"])
    plain = nn.Linear(784, 512).weight
    assert abs(a["backbone.layer1.weight"].std() / plain.std() - 1) < 0.02
    assert a["backbone.layer1.weight"].abs().max() <= 784**-0.5


def test_normalisation_belongs_to_the_network():
    plain, normed = (Network(MLP(12, (4,)), Head(2), *ms) for ms in ((None, None), ((0.5,) * 3, (0.25,) * 3)))
    state = stack([plain.init(0)])
    images = torch.rand(1, 5, 3, 2, 2)
    torch.testing.assert_close(normed.outputs(state, images), plain.outputs(state, (images - 0.5) / 0.25))


def test_with_head_copies_the_backbone_and_shares_nothing():
    network = Network(MLP(12, (4,)), Head(8, hidden=True))
    state = network.init(0)
    classifier, copied = network.with_head(Head(3), state, seed=1)
    assert set(copied) == set(classifier.init(0))
    assert torch.equal(copied["backbone.layer1.weight"], state["backbone.layer1.weight"])
    copied["backbone.layer1.weight"].zero_()
    assert state["backbone.layer1.weight"].any()


def test_unstack_gives_each_network_back():
    states = [Network(MLP(4, (3,)), Head(2)).init(s) for s in range(3)]
    again = unstack(stack(states), 1)
    assert all(torch.equal(again[name], states[1][name]) for name in again)
