"""Numbers that must not change unseen: whoever changes them changes every published result."""

import torch

from purereplay.data.datasets import given_labels, load
from purereplay.data.episodes import tasks_for
from purereplay.data.seeds import derive_seed
from purereplay.data.streams import Stream
from purereplay.nets.draws import uniforms
from purereplay.nets.networks import MLP, Head, Network

GOLDEN = {
    "seed": 4580029083584589003,
    "stream": "4acc868dd82fab67",
    "draws": [0.38541, 0.516446, 0.676617, 0.291834],
    "weights": [-7.4888, -0.22122, -2.90949],
}


def test_seeds_streams_draws_and_weights_are_what_they_were():
    assert derive_seed(1, "expert draws", 0) == GOLDEN["seed"]
    digits = load("digits")
    given = given_labels(digits, noise="symmetric", rate=0.4, seed=1)
    stream = Stream(digits.images, given, tasks=tasks_for("digits", "symmetric"), seed=1)
    assert stream.fingerprint() == GOLDEN["stream"]
    draws = uniforms(torch.tensor([GOLDEN["seed"]]), torch.tensor(3), 4, stream=2)
    assert [round(u, 6) for u in draws[0].tolist()] == GOLDEN["draws"]
    state = Network(MLP(64, (16, 16)), Head(8, hidden=True)).init(5)
    assert [round(float(t.double().sum()), 5) for t in list(state.values())[:3]] == GOLDEN["weights"]
