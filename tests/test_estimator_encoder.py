"""SelfPurifiedClassifier with an encoder: images are learned as features, and another encoder is refused."""

import pickle
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone

from purereplay import SelfPurifiedClassifier
from purereplay.data.encoders import as_encoder, encoded_samples
from purereplay.errors import InputError, UserError
from small_onnx import write_onnx

COLOURS = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200]])
TRUTH = np.arange(90) % 3
IMAGES = (COLOURS[TRUTH][:, None, None] + np.random.default_rng(0).integers(-40, 40, (90, 9, 7, 3))).clip(0, 255)
IMAGES = IMAGES.astype(np.uint8)
WRONG = np.arange(90) % 7 == 3
LABELS = np.where(WRONG, (TRUTH + 1) % 3, TRUTH)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_onnx(tmp_path / "m.onnx")


class Means:
    name, dim, size = "means", 3, 8

    def embed(self, images):
        return images.mean((2, 3))


def rejected(classifier) -> set:
    return {int(row["id"]) for row in classifier.suspects() if not row["passed"]}


@pytest.mark.parametrize("encoder", ["onnx:m.onnx", Means()], ids=["text", "object"])
def test_images_are_learned_as_features(encoder):
    classifier = SelfPurifiedClassifier(encoder=encoder)
    for start in range(0, 90, 30):
        classifier.partial_fit(IMAGES[start : start + 30], LABELS[start : start + 30])
    classifier.flush()
    assert rejected(classifier) == set(np.flatnonzero(WRONG).tolist())
    assert (classifier.predict(IMAGES) == TRUTH).all() and classifier.n_features_in_ == 3
    assert classifier.purified().X.shape == (90 - WRONG.sum(), 3)
    again = clone(classifier).fit(IMAGES, LABELS)
    assert rejected(again) == rejected(classifier)
    vectors = SelfPurifiedClassifier().fit(Means().embed(np.moveaxis(IMAGES, 3, 1)), LABELS)
    assert rejected(vectors) == rejected(classifier)  # nearly the same features, which were not resized


def test_pictures_may_have_any_size_and_orientation():
    pictures = [Image.fromarray(own).resize((5 + i % 9, 4 + i % 6)) for i, own in enumerate(IMAGES)]
    classifier = SelfPurifiedClassifier(encoder="onnx:m.onnx").fit(pictures, LABELS)
    assert rejected(classifier) == set(np.flatnonzero(WRONG).tolist())
    with pytest.raises(InputError, match="takes images, and X holds vectors"):
        classifier.predict(np.ones((2, 3)))


def test_a_saved_classifier_needs_the_same_encoder(tmp_path):
    SelfPurifiedClassifier(encoder="onnx:m.onnx").fit(IMAGES, LABELS).save("saved")
    loaded = SelfPurifiedClassifier.load("saved")
    assert (loaded.predict(IMAGES) == TRUTH).all()
    assert (pickle.loads(pickle.dumps(loaded)).predict(IMAGES) == TRUTH).all()
    (tmp_path / "m.onnx").rename("moved.onnx")
    with pytest.raises(UserError, match="cannot be read"):
        SelfPurifiedClassifier.load("saved").predict(IMAGES)
    assert (SelfPurifiedClassifier.load("saved", encoder="onnx:moved.onnx").predict(IMAGES) == TRUTH).all()
    write_onnx(tmp_path / "m.onnx", scale=2)
    for call in ("predict", "partial_fit"):
        with pytest.raises(
            UserError, match=r"This classifier was made with a different encoder or version than onnx:m\.onnx"
        ):
            getattr(SelfPurifiedClassifier.load("saved"), call)(IMAGES, *([LABELS] if call == "partial_fit" else []))
    with pytest.raises(UserError, match="learned features of an encoder"):
        loaded.set_params(encoder=None).predict(IMAGES)
    with pytest.raises(UserError, match="without an encoder"):
        SelfPurifiedClassifier().fit(IMAGES, LABELS).set_params(encoder="onnx:m.onnx").predict(IMAGES)


def test_a_saved_classifier_runs_no_code_of_somebody_else(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def embed(x):\n    return x.mean((2, 3))\nembed.size = 8\n")
    SelfPurifiedClassifier(encoder="python:mine:embed").fit(IMAGES, LABELS).save("saved")
    monkeypatch.delitem(sys.modules, "mine")
    with pytest.raises(UserError, match="which runs code; name it with encoder= if you trust it"):
        SelfPurifiedClassifier.load("saved")
    assert "mine" not in sys.modules
    assert (SelfPurifiedClassifier.load("saved", encoder="python:mine:embed").predict(IMAGES) == TRUTH).all()
    with pytest.raises(UserError, match="whose encoder is an object cannot be saved"):
        SelfPurifiedClassifier(encoder=Means()).fit(IMAGES, LABELS).save("other")


def test_an_image_that_cannot_be_encoded_is_named_and_nothing_is_learned():
    class Bad(Means):
        def embed(self, images):
            found = images.mean((2, 3))
            found[(images == 255).all((1, 2, 3))] = np.nan
            return found

    images = IMAGES.copy()
    images[17] = 255
    classifier = SelfPurifiedClassifier(encoder=Bad())
    with pytest.raises(InputError, match="Sample 17 of X gets NaN or infinity"):
        classifier.fit(images, LABELS)
    assert not hasattr(classifier, "classes_")


def test_images_of_16_bits_and_transparent_ones_are_read_as_by_learn():
    deep = Image.fromarray(np.full((9, 7), 100 << 8, np.uint16))
    clear = Image.new("RGBA", (9, 7), (0, 0, 0, 0))
    found = encoded_samples(as_encoder(Means()), [deep, clear])
    assert found.reshape(2, 3).tolist() == [[100.0] * 3, [255.0] * 3]  # the higher eight bits; over white
    with pytest.raises(InputError, match="Sample 0 of X is a PIL image of floats"):
        encoded_samples(as_encoder(Means()), [Image.fromarray(np.zeros((9, 7), np.float32))])


def test_images_whose_range_is_not_known_are_refused_and_do_not_become_black(tmp_path):
    means, grey = as_encoder(Means()), Image.new("L", (9, 7), 100)
    with pytest.raises(InputError, match=r"Sample 1 of X is a PIL image of integers of 32 bits: convert it to RGB"):
        encoded_samples(means, [grey, grey.convert("I")])
    narrow = Image.fromarray(np.full((9, 7), 100, np.uint16))  # as of convert("I;16")
    with pytest.raises(InputError, match=r"Sample 0 of X is a PIL image of 16 bits with values below 256"):
        encoded_samples(means, [narrow])
    narrow.save(tmp_path / "dark.png")  # a file says its depth: it is dark, as for learn
    deep = Image.fromarray(np.full((9, 7), 100 << 8, np.uint16))
    deep.save(tmp_path / "deep.png")
    deep.convert("I").save(tmp_path / "deep.pgm")  # opened in mode I
    files = [Image.open(tmp_path / name) for name in ("dark.png", "deep.png", "deep.pgm")]
    found = encoded_samples(means, [*files, Image.new("I;16", (9, 7))])
    assert found[:, 0].ravel().tolist() == [0, 100, 100, 0]
