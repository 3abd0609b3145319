"""Exported classifiers predict what the state's own predicts, and the model card says what it should."""

import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_state import items, picture, png, tiny

import purereplay
from purereplay.data.encoders import EncoderFacts
from purereplay.data.packing import unpack_tensors
from purereplay.errors import UserError
from purereplay.live.encoding import inputs
from purereplay.live.export.card import HEAD
from purereplay.live.export.exporter import export
from purereplay.live.export.graphs import graph_of
from purereplay.live.export.preparation import encoder_rows, encoder_words
from purereplay.live.items import Item
from purereplay.live.opinion import Opinion
from purereplay.live.predict import ready_classifier
from purereplay.live.session import Session
from purereplay.live.settings import Wanted, wanted_encoder
from purereplay.live.store import Store
from purereplay.nets.engine import Engine
from purereplay.nets.resnet import ResNet18
from purereplay.purify.opinions import FeatureMap, choose_model
from small_onnx import write_onnx


def make_state(folder, learner: str, n: int = 60):
    with tiny(folder, learner) as session:
        session.take(items(0, n))
        session.work(rest=True)
    return folder


def own(state, images: np.ndarray) -> np.ndarray:
    with Store.reading(state) as store:
        classifier, _ = ready_classifier(store, Engine(torch.device("cpu")))
        return classifier.probabilities(torch.from_numpy(images)).numpy()


def new_images(n: int) -> np.ndarray:
    return np.array([picture(500 + i, i % 3)[None] for i in range(n)], np.uint8).reshape(n, 1, 6, 6)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return make_state(tmp_path_factory.mktemp("exported") / "state", "full-memory")


@pytest.fixture(scope="module")
def encoded_state(tmp_path_factory):
    """A state whose encoder is an ONNX file."""
    folder = tmp_path_factory.mktemp("encoded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        encoder = wanted_encoder(f"onnx:{write_onnx(folder / 'channels.onnx')}?batch=4")
        with Session.open(folder / "state", Wanted(encoder=encoder), Engine(torch.device("cpu"))) as session:
            session.take([Item(f"s{i}", f"label {i % 3}", png(coloured(i))) for i in range(30)])
            session.work(rest=True)
    return folder / "state"


def coloured(number: int) -> np.ndarray:
    """A colour image whose brightest channel is that of its label."""
    noise = np.random.default_rng(number).integers(0, 120, (6, 9, 3))
    noise[:, :, number % 3] += 100
    return noise.astype(np.uint8)


@pytest.mark.long
@pytest.mark.parametrize("learner", ["full-memory", pytest.param("spr", marks=pytest.mark.slow)])
def test_onnx_predicts_the_same_in_onnxruntime(tmp_path, learner):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    state = make_state(tmp_path / "state", learner)
    done = export(state, "onnx", tmp_path / "model")
    session = onnxruntime.InferenceSession(str(done.model))
    [given] = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("images", "tensor(uint8)", ["n", 1, 6, 6])
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["labels"]) == ["label 0", "label 1", "label 2"]
    for n in (0, 1, 40):
        [found] = session.run(["probabilities"], {"images": new_images(n)})
        np.testing.assert_allclose(found, own(state, new_images(n)), atol=1e-4)
    assert done.check.n == 60 and done.check.difference < 1e-4


@pytest.mark.slow
def test_a_torch_program_predicts_the_same(tmp_path, state):
    done = export(state, "torch", tmp_path / "model")
    module = torch.export.load(done.model).module()
    found = module(torch.from_numpy(new_images(40))).numpy()
    np.testing.assert_allclose(found, own(state, new_images(40)), atol=1e-5)


def test_safetensors_holds_the_tensors_of_the_classifier(tmp_path, state):
    from safetensors.torch import load_file

    done = export(state, "safetensors", tmp_path / "model")
    with Store.reading(state) as store:
        classifier, _ = ready_classifier(store, Engine(torch.device("cpu")))
    found = load_file(done.model)
    assert found.keys() == classifier.tensors().keys()
    assert all(torch.equal(found[name], t) for name, t in classifier.tensors().items())
    assert done.check.difference == 0


FORMS = [pytest.param("onnx", marks=pytest.mark.long), pytest.param("torch", marks=pytest.mark.slow), "safetensors"]


def contents(folder) -> bytes:
    """The bytes of all files, and of the parts of those that are archives."""
    found = b""
    for path in sorted(folder.iterdir()):
        found += path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                found += b"".join(archive.read(name) for name in archive.namelist())
    return found


@pytest.mark.parametrize("form", FORMS)
def test_files_hold_no_path_of_this_machine_and_no_image(tmp_path, state, encoded_state, form):
    if form == "onnx":
        pytest.importorskip("onnxscript")
    for own_state in (state, encoded_state):
        out = tmp_path / own_state.parent.name
        export(own_state, form, out)
        found = contents(out)
        for path in (Path(purereplay.__file__).parents[1], Path(torch.__file__).parents[1], own_state.parent):
            assert str(path).encode() not in found
        assert b"stack_trace" not in found
        with Store.reading(own_state) as store:
            assert next(iter(store.span(0, 1))).pixels.tobytes() not in found
            assert inputs(store, np.array([0])).numpy().tobytes() * 2 not in found  # a batch as an example


SHAPES = {"square": (6, 6), "wide": (9, 21), "larger than 32": (40, 70)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("channels", [1, 3])
def test_the_graph_of_patches_is_that_of_the_state(tmp_path, shape, channels):
    def image(i: int) -> np.ndarray:
        pixels = np.random.default_rng(i).integers(0, 150, (*shape, channels), np.uint8)
        pixels[i % 3 :: 3] += 100
        return pixels.squeeze()

    with tiny(tmp_path / "state", "full-memory") as session:
        session.take([Item(f"s{i}", f"l{i % 3}", png(image(i))) for i in range(30)])
        session.work(rest=True)
        classifier, _ = ready_classifier(session.store, Engine(torch.device("cpu")))
        images = torch.from_numpy(np.stack([row.pixels for row in session.store.span(0, 30)]))
    with torch.no_grad():
        found = graph_of(classifier)(images)
    np.testing.assert_allclose(found.numpy(), classifier.probabilities(images).numpy(), atol=1e-5)


@pytest.mark.parametrize("n_labels", [1, 3])
def test_the_graph_of_vectors_has_all_kinds_of_models(n_labels):
    dice = np.random.default_rng(0)
    labels = np.arange(120) % n_labels
    vectors = dice.normal(size=(120, 6)) + labels[:, None]
    feature_map = FeatureMap.fit(vectors)
    features = feature_map.transform(vectors)
    kinds = ("kernel", "linear", "neighbours", "forest")
    model = choose_model(features, labels, np.ones(120), 5, kinds=kinds)
    opinion = Opinion(1, "", feature_map, model, np.eye(5), (6, 1, 1), {}, {})
    new = dice.normal(size=(50, 6)) + 1
    with torch.no_grad():
        found = graph_of(opinion)(torch.from_numpy(new))
    np.testing.assert_allclose(found.numpy(), model.predict_proba(feature_map.transform(new)), atol=1e-6)


def test_every_kind_of_model_has_a_graph():
    from purereplay.live.export.graphs import _member
    from purereplay.purify.opinions.members import KINDS

    dice = np.random.default_rng(0)
    labels = np.arange(120) % 3
    features = (dice.normal(size=(120, 6)) + labels[:, None]).astype(np.float32)
    new = (dice.normal(size=(50, 6)) + 1).astype(np.float32)
    for kind in KINDS.values():
        member, _ = kind.fit(features, labels, np.ones(120, np.float32), 3, 0)
        found = _member(member)(torch.from_numpy(new)).numpy()
        np.testing.assert_allclose(found, member.scores(new), atol=1e-9, err_msg=kind.kind)


def test_a_network_with_batch_norm_has_a_graph():
    from purereplay.nets.inference import Classifier
    from purereplay.nets.networks import Head, Network

    network = Network(ResNet18(3), Head(4), mean=(0.5,) * 3, std=(0.2,) * 3)
    classifier = Classifier(network, network.init(0), (3, 32, 32))
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        found = graph_of(classifier)(images)
    torch.testing.assert_close(found, classifier.probabilities(images), atol=1e-6, rtol=0)


OTHER = {1 / 3: r"differs from the state's own by .* so nothing is written", np.nan: "is not a number, so nothing is"}


@pytest.mark.parametrize(("probability", "error"), OTHER.items())
def test_a_file_that_predicts_otherwise_is_not_written(tmp_path, state, monkeypatch, probability, error):
    class Other:
        def probabilities(self, images: torch.Tensor) -> torch.Tensor:
            found = torch.from_numpy(own(state, images.numpy()))
            found[len(found) // 2] = probability
            return found

    monkeypatch.setattr(Opinion, "with_tensors", lambda *values: Other())
    with pytest.raises(UserError, match=error):
        export(state, "safetensors", tmp_path / "model")
    assert not list((tmp_path / "model").iterdir())


# ---------------------------------------------------------------- card


def test_the_card_says_what_it_should(tmp_path, state):
    done = export(state, "safetensors", tmp_path / "model", licence="CC-BY-4.0")
    text = done.card.read_text()
    assert text.startswith(HEAD) and 'license: "CC-BY-4.0"' in text
    for part in (
        "60 images with given labels",
        "| label 0 | 20 | 20 |",
        "Estimated share of wrong labels",
        "Estimated without true labels",
        "6 × 6 pixels",
        "| learner | full-memory |",
        "| first | 20 |",
        'Labels:\n\n```json\n["label 0", "label 1", "label 2"]\n```',
        "The file has the tensors alone",
        "the largest\ndifference of a probability was 0.0e+00",
    ):
        assert part in text, part
    assert done.accuracy is not None and 0.5 < done.accuracy.rate <= 1 and not done.accuracy.measured


def test_the_card_says_how_an_image_is_resized(tmp_path, state, encoded_state):
    for own_state, subject in (
        (state, "An image is grey, 6 × 6"),
        (encoded_state, "An image for the encoder is in col"),
    ):
        text = " ".join(export(own_state, "safetensors", tmp_path / "model").card.read_text().split())
        assert subject in text and "by bilinear interpolation" in text and "aspect kept" in text


def test_the_card_names_the_encoder_and_what_it_gets(tmp_path, encoded_state):
    done = export(encoded_state, "safetensors", tmp_path / "model")
    text = done.card.read_text()
    with Store.reading(encoded_state) as store:
        facts, shape = store.image_settings.encoder, store.image_settings.shape
    for part in (
        "| kind | onnx |",
        "| file | channels.onnx |",
        "| options | batch=4 |",
        f"| digest | {facts.digest} |",
        "| images | 8 × 8 pixels |",
        "| features | 3 |",
        "its features: 3 numbers, float32",
        "less the mean (0.485, 0.456, 0.406), divided by the standard\ndeviation (0.229, 0.224, 0.225)",
        "float32 (n, 3)",
    ):
        assert part in text, part
    assert f"{shape[2]} × {shape[1]} pixels" not in text  # of the small copies
    saved = unpack_tensors(done.model).facts
    assert saved["encoder"] == "onnx:channels.onnx?batch=4" and saved["encoder_digest"] == facts.digest
    assert (saved["encoder_size"], saved["features"]) == (8, 3) and "image_shape" not in saved


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("onnx:m.onnx?mean=0.5&std=0.25", "less the mean (0.5, 0.5, 0.5), divided by the standard deviation (0.25, 0."),
        ("onnx:m.onnx", "If the input of the ONNX model is uint8, it gets the pixels themselves"),
        ("torch:m.pt2?input=uint8", "The network gets the pixels themselves, uint8"),
        ("python:own:embed", "The function gets the pixels themselves, uint8 from 0 to 255: (n, 3, height, width)"),
        ("hf:owner/model", "less the model's own mean, divided by its own standard deviation"),
        ("file:f.npz", "They were computed elsewhere"),
    ],
)
def test_every_kind_of_encoder_is_described(text, told):
    facts = EncoderFacts(text, "digest", 5, 0 if text.startswith("file") else 96)
    words, rows = " ".join(encoder_words(facts).split()), dict(encoder_rows(facts))
    assert told in words and rows["kind"] == text.partition(":")[0]
    assert ("96 × 96 pixels" in words) == ("digest" in rows) == (not text.startswith("file"))


def test_the_accuracy_is_measured_on_a_folder(tmp_path, state):
    for i in range(12):
        path = tmp_path / "test" / f"label {i % 3 if i < 9 else 'x'}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(700 + i, i % 3)).save(path)
    (tmp_path / "test" / "label 0" / "damaged.png").write_bytes(b"\x89PNG")
    done = export(state, "safetensors", tmp_path / "model", test=tmp_path / "test")
    assert done.accuracy is not None and done.accuracy.measured and done.accuracy.n == 12
    expected = own(state, np.stack([picture(700 + i, i % 3)[None] for i in range(9)])).argmax(1)
    assert done.accuracy.rate == pytest.approx((expected == np.arange(9) % 3).sum() / 12)
    text = done.card.read_text()
    assert "Measured on 12 images with right labels" in text and "Files that could not be used: 1." in text


def test_a_label_cannot_break_the_card(tmp_path):
    label = "a|b\n# c <script>"
    other = "`` \u202e z"
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take([Item(f"s{i}", label if i % 2 else other, png(picture(i, i % 2))) for i in range(30)])
        session.work(rest=True)
    text = export(tmp_path / "state", "safetensors", tmp_path / "model").card.read_text()
    assert "| a\\|b \\# c \\<script\\> | 15 |" in text
    assert "\n# c" not in text and "\u202e" not in text
    [labels] = re.findall(r"^```json\n(.*)\n```$", text, re.MULTILINE)
    assert json.loads(labels) == [other, label]


def test_what_export_refuses(tmp_path, state):
    with pytest.raises(UserError, match="choose onnx, torch, safetensors"):
        export(state, "pickle", tmp_path / "model")
    (tmp_path / "link").symlink_to(state)
    for out in (state, tmp_path / "link", state / ".." / state.name):
        with pytest.raises(UserError, match="is the folder of the state: choose another --out"):
            export(state, "safetensors", out)
    assert not (state / "README.md").exists()
    (tmp_path / "README.md").write_text("# My project\n")
    with pytest.raises(UserError, match="is not a model card"):
        export(state, "safetensors", tmp_path)
    (tmp_path / "folder" / "README.md").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "README.md")
    for name in ("folder", "pipe"):
        with pytest.raises(UserError, match="is not a model card"):
            export(state, "safetensors", tmp_path / name)
    with pytest.raises(UserError, match="holds no state"):
        export(tmp_path / "nothing", "safetensors", tmp_path / "model")
    with tiny(tmp_path / "young", "full-memory") as session:
        session.take(items(0, 5))
    with pytest.raises(UserError, match="has no classifier yet"):
        export(tmp_path / "young", "safetensors", tmp_path / "model")
    with pytest.raises(UserError, match="holds no images"):
        (tmp_path / "empty").mkdir()
        export(state, "safetensors", tmp_path / "model", test=tmp_path / "empty")


def test_the_estimate_takes_wrong_labels_into_account():
    from purereplay.live.export.accuracy import _accuracy

    dice = np.random.default_rng(0)
    n, n_labels, wrong, accuracy = 200_000, 5, 0.3, 0.8
    truth = dice.integers(0, n_labels, n)

    def changed(share: float) -> np.ndarray:
        return np.where(dice.random(n) < share, (truth + dice.integers(1, n_labels, n)) % n_labels, truth)

    agreement = float((changed(1 - accuracy) == changed(wrong)).mean())
    assert _accuracy(agreement, wrong, n_labels) == pytest.approx(accuracy, abs=0.01)
    assert _accuracy(0.9, 0.3, 5) == 1.0 and _accuracy(0.0, 0.3, 5) == 0.0
