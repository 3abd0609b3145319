"""Encoders: every kind gives the features of its model, and one that cannot be used is refused in one sentence."""

import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from PIL import Image

from purereplay.data.encoders import EncoderFacts, FeatureCache, FeatureFile, as_encoder, open_encoder, reopen
from purereplay.data.encoders import cache as cache_module
from purereplay.data.encoders.options import Normal
from purereplay.data.encoders.pictures import as_input, as_inputs
from purereplay.errors import UserError
from small_onnx import SIZE, write_onnx


def images(n: int, size: int = SIZE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, size, size), dtype=np.uint8)


def means(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64).mean((2, 3))


# ---------------------------------------------------------------- kinds


@pytest.mark.parametrize("shape", [("n", 3, SIZE, SIZE), ("n", SIZE, SIZE, 3), (1, 3, SIZE, SIZE), (5, 3, "h", "w")])
def test_an_onnx_model_of_pixels(tmp_path, shape):
    path = write_onnx(tmp_path / "m.onnx", shape=shape)
    text = f"onnx:{path}" + ("?size=8" if "h" in shape else "")
    encoder, x = open_encoder(text), images(11)
    assert (encoder.name, encoder.dim, encoder.size) == ("onnx:m.onnx", 3, SIZE)
    found = encoder.embed(x)
    assert found.features.dtype == np.float32 and not found.reasons
    assert np.allclose(found.features, means(x), rtol=1e-5)


def test_an_onnx_model_with_weights_in_another_file_is_refused(tmp_path, monkeypatch):
    """They would be read from the working directory, and could change."""
    path = write_onnx(tmp_path / "m.onnx")
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").exists()
    for folder in (tmp_path, tmp_path.parent):
        monkeypatch.chdir(folder)
        with pytest.raises(UserError, match=r"m\.onnx has its weights in another file, which is not read: save both"):
            open_encoder(f"onnx:{path}")


def test_an_onnx_model_of_floats_gets_normalised_pixels(tmp_path):
    path, x = write_onnx(tmp_path / "m.onnx", kind=TensorProto.FLOAT), images(3)
    mean, std = Normal().mean, Normal().std
    assert np.allclose(open_encoder(f"onnx:{path}").embed(x).features, (means(x) / 255 - mean) / std, atol=1e-4)
    other = open_encoder(f"onnx:{path}?mean=0.5&std=0.25,0.5,1")
    assert np.allclose(other.embed(x).features, (means(x) / 255 - 0.5) / [0.25, 0.5, 1], atol=1e-4)
    assert other.digest != open_encoder(f"onnx:{path}").digest


class Averages(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("form", ["script", "export"])
def test_a_torch_file(tmp_path, form):
    path, example = tmp_path / ("m.pt" if form == "script" else "m.pt2"), torch.from_numpy(images(4))
    if form == "script":
        torch.jit.save(torch.jit.trace(Averages(), example), str(path))
    else:
        torch.export.save(torch.export.export(Averages(), (example,)), path)
    encoder, x = open_encoder(f"torch:{path}?size=8&input=uint8&batch=4"), images(11)
    assert (encoder.dim, encoder.batch) == (3, 4)
    assert np.allclose(encoder.embed(x).features, 2 * means(x), rtol=1e-5)  # an average over positions


def test_a_pickled_torch_file_is_refused_and_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    torch.save(Trap(), tmp_path / "m.pt")
    with pytest.raises(UserError, match=r"m\.pt is not a file of torch\.jit\.save or torch\.export\.save"):
        open_encoder(f"torch:{tmp_path / 'm.pt'}")
    assert not (tmp_path / "ran").exists()


def module(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)


FUNCTION = "def embed(x):\n    return x.mean((2, 3))\nembed.size = 8\n"
OBJECT = """
class Own:
    name, dim, size = "own", 3, 8
    def embed(self, x):
        return x.mean((2, 3))
own = Own()
"""


@pytest.mark.parametrize(("text", "name"), [(FUNCTION, "embed"), (OBJECT, "own")])
def test_code_in_the_working_directory(tmp_path, monkeypatch, text, name):
    module("own_encoder", monkeypatch, tmp_path, text)
    path = list(sys.path)
    encoder, x = open_encoder(f"python:own_encoder:{name}"), images(20)
    assert (encoder.dim, encoder.size) == (3, 8) and sys.path == path
    assert np.allclose(encoder.embed(x).features, means(x), rtol=1e-5)
    module("own_encoder", monkeypatch, tmp_path, text + "# another version\n")
    assert open_encoder(f"python:own_encoder:{name}").digest != encoder.digest


def test_a_model_of_timm_and_one_of_transformers_by_their_interfaces(monkeypatch):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x=None, pixel_values=None):
            x = pixel_values if x is None else x
            found = x.mean((2, 3)) * self.weight
            return found if pixel_values is None else SimpleNamespace(pooler_output=found)

    model, asked = Model(), []
    timm, data, transformers = ModuleType("timm"), ModuleType("timm.data"), ModuleType("transformers")
    timm.create_model = lambda *args, **options: asked.append((args, options)) or model
    data.resolve_model_data_config = lambda model: {"input_size": (3, 8, 8), "mean": (0, 0, 0), "std": (1, 1, 1)}
    facts = {"size": {"height": 8, "width": 8}, "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}
    processor = SimpleNamespace(to_dict=lambda: facts)
    transformers.AutoModel = SimpleNamespace(from_pretrained=lambda *a, **o: asked.append((a, o)) or model)
    transformers.AutoImageProcessor = SimpleNamespace(from_pretrained=lambda *a, **o: processor)
    for own in (timm, data, transformers):
        monkeypatch.setitem(sys.modules, own.__name__, own)
    x = images(5)
    for text in ("timm:tiny", "hf:tiny"):
        with torch.no_grad():
            model.weight.fill_(1)
        encoder = open_encoder(text)
        assert np.allclose(encoder.embed(x).features, means(x) / 255, atol=1e-5)
        before = encoder.digest
        with torch.no_grad():
            model.weight.fill_(2)
        assert open_encoder(text).digest != before  # of its weights
    processor.to_dict = None  # such as a folder with a model alone
    assert open_encoder("hf:tiny?size=8&mean=0&std=1").size == 8
    with pytest.raises(UserError, match=r"The encoder hf:tiny cannot be loaded: .*, name all of hf:tiny\?size=224&"):
        open_encoder("hf:tiny?size=8")
    assert asked[0] == (("tiny",), {"pretrained": True, "num_classes": 0})
    assert asked[-1][1] == {"trust_remote_code": False, "use_safetensors": True}  # neither code nor pickles


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv"])
def test_a_file_of_features(tmp_path, kind):
    rows, ids = np.arange(6.0).reshape(3, 2), ["a/1.png", "b/2.png", "7"]
    path = tmp_path / f"f.{kind}"
    if kind == "npz":
        np.savez(path, features=rows, ids=np.array(ids), labels=np.array(["x", "y", "x"]))
    else:
        import pandas

        table = pandas.DataFrame({"id": ids, "label": ["x", "y", "x"], "f0": rows[:, 0], "f1": rows[:, 1]})
        table.to_parquet(path) if kind == "parquet" else table.to_csv(path, index=False)
    found = open_encoder(f"file:{path}")
    assert isinstance(found, FeatureFile) and found.dim == 2
    assert found.find("no", "b/2.png").tolist() == [2, 3] and found.find("7").tolist() == [4, 5]
    assert found.find("no") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("onnx:/home/me/m.onnx", "onnx:m.onnx"),
        ("onnx:/home/me/m.onnx?size=96&output=/pool/out", "onnx:m.onnx?size=96&output=/pool/out"),
        ("file:/home/me/f.npz", "file:f.npz"),
        ("hf:/home/me/model", "hf:model"),
        ("hf:../me/model", "hf:model"),
        ("hf:owner/model", "hf:owner/model"),
        ("python:halves:embed", "python:halves:embed"),
    ],
)
def test_the_name_of_an_encoder_has_no_folder(text, name):
    assert EncoderFacts(text, "", 1, 1).name == name


# ---------------------------------------------------------------- what cannot be used


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lite0", "The encoder 'lite0' is unknown: use none, onnx:FILE"),
        ("onnx:", "is unknown"),
        ("onnx:no.onnx", r"The encoder no\.onnx cannot be read: No such file"),
        ("onnx:text.onnx", r"text\.onnx cannot be used as an ONNX model"),
        ("onnx:m.onnx?size=9", r"^m\.onnx takes images of 8 × 8 pixels, not 9 × 9: leave the size out\.$"),
        ("onnx:one.onnx?batch=4", r"^one\.onnx takes 1 images at once, not 4: leave the batch out\.$"),
        ("onnx:m.onnx?colour=1", "has no option 'colour'"),
        ("onnx:m.onnx?mean=a", "are not numbers"),
        ("onnx:m.onnx?output=z", "has no output 'z'; its outputs are: y"),
        ("onnx:free.onnx?size=4000", "takes images of 4,000 pixels"),
        ("onnx:m.onnx?batch=0", "8 pixels, 0 at once"),
        ("torch:text.onnx", "is not a file of torch"),
        ("python:own", "must be written python:MODULE:FUNCTION"),
        ("python:no_such_module:f", "cannot be imported: No module named"),
        ("python:math:none", "math has no 'none'"),
        ("python:math:pi", "its type is float, and a function is needed"),
        ("timm:resnet18", "needs timm: install it"),
        ("hf:some/model", "needs transformers: install it"),
        ("file:no.npz", "cannot be read: No such file"),
        ("file:plain.npz", r"plain\.npz has no array 'ids'"),
        ("file:m.onnx", "its suffix must be one of"),
    ],
)
def test_an_encoder_that_cannot_be_opened(tmp_path, monkeypatch, text, reason):
    monkeypatch.chdir(tmp_path)
    for name in ("timm", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)  # not installed
    write_onnx(tmp_path / "m.onnx")
    write_onnx(tmp_path / "free.onnx", shape=("n", 3, "h", "w"))
    write_onnx(tmp_path / "one.onnx", shape=(1, 3, SIZE, SIZE))
    (tmp_path / "text.onnx").write_text("no model")
    np.savez(tmp_path / "plain.npz", features=np.ones((2, 2)))
    with pytest.raises(UserError, match=reason) as error:
        open_encoder(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_a_pipe_or_a_device_is_no_encoder(tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    (tmp_path / "zero").symlink_to("/dev/zero")  # without an end
    for name in ("pipe", "zero"):
        with pytest.raises(UserError, match=rf"The encoder .*{name} cannot be read: it is not a regular file\."):
            open_encoder(f"{kind}:{tmp_path / name}")
    with pytest.raises(UserError, match="its name holds a NUL character"):
        open_encoder(f"{kind}:a\0b")


ODD = """
class Ending(BaseException):
    pass
class Silent(Exception):
    def __str__(self):
        raise RuntimeError("boom")
class Object:
    name, dim, size = "object", "48", 8
    def embed(self, x):
        return x.mean((2, 3))
def embed(x):
    return x.mean((2, 3))
def big(x): return embed(x)
big.size = "big"
def pair(x): return embed(x)
pair.size = (32, 32)
def part(x): return embed(x)
part.size = 32.7
def no_batch(x): return embed(x)
no_batch.batch = None
def silent(x): raise Silent
def ending(x): raise Ending("end")
def interrupted(x): raise KeyboardInterrupt
own = Object()
def __getattr__(name):
    raise RuntimeError("no " + name)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("big", "has a size of the type str: set it to a whole number, such as 224"),
        ("pair", "has a size of the type tuple"),
        ("part", "has a size of the type float"),
        ("no_batch", "has a batch of the type NoneType: set it to a whole number, such as 8"),
        ("own", "The encoder object has a dim of the type str"),
        ("silent", "a trial image cannot be encoded: Silent"),
        ("ending", "a trial image cannot be encoded: end"),
        ("missing", "cannot be used: no missing"),
    ],
)
def test_odd_code_is_refused_in_one_sentence(tmp_path, monkeypatch, name, reason):
    module("odd_code", monkeypatch, tmp_path, ODD)
    with pytest.raises(UserError, match=reason):
        open_encoder(f"python:odd_code:{name}")


def test_an_interrupt_within_an_encoder_stays_one(tmp_path, monkeypatch):
    module("odd_code", monkeypatch, tmp_path, ODD)
    with pytest.raises(KeyboardInterrupt):
        open_encoder("python:odd_code:interrupted")


def own(embed, dim=2):
    return SimpleNamespace(name="own", dim=dim, size=SIZE, embed=embed)


@pytest.mark.parametrize(
    ("embed", "reason"),
    [
        (lambda x: np.full((len(x), 2), np.nan), "a trial image gets NaN or infinity"),
        (lambda x: np.ones((len(x), 3)), r"gets features of shape \(8, 3\) from the encoder, not \(8, 2\)"),
        (lambda x: np.ones((len(x) - 1, 2)), r"gets features of shape \(7, 2\)"),
        (lambda x: np.ones(2), r"gets features of shape \(2,\)"),
        (lambda x: 1 / 0, "cannot be encoded: division by zero"),
        (lambda x: {}["weights"], "cannot be encoded: KeyError: 'weights'"),
        (lambda x: np.ones((len(x), 2)), "it gives two different trial images the same features"),
        (lambda x: [["a"] * 2] * len(x), "cannot be encoded"),
    ],
)
def test_an_encoder_that_fails_its_trial(embed, reason):
    with pytest.raises(UserError, match=rf"The encoder own cannot be used.*{reason}"):
        as_encoder(own(embed))
    with pytest.raises(UserError, match="with name, dim and embed"):
        as_encoder(embed)


MARK = 200


def marked(x, answer):
    """Features of images; `answer` replaces the rows of images that are all MARK, or raises."""
    found = means(x)[:, :2].astype(np.float32)
    rows = (x == MARK).all((1, 2, 3))
    return answer(found, rows) if rows.any() else found


def with_nan(found, rows):
    found[rows] = np.nan
    return found


def wrong_size(found, rows):
    return found[:, :1]


def raising(found, rows):
    raise ValueError("too bright")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(with_nan, "gets NaN"), (wrong_size, "gets features of shape"), (raising, "cannot be encoded: too bright")],
)
def test_an_encoder_that_fails_on_one_image_gives_the_features_of_the_others(answer, reason):
    encoder, x = as_encoder(own(lambda x: marked(x, answer))), images(20)
    x[13] = MARK
    found = encoder.embed(x)
    assert list(found.reasons) == [13] and reason in found.reasons[13]
    rows = np.arange(20) != 13
    assert np.array_equal(found.features[rows], means(x)[rows, :2].astype(np.float32)) and not found.features[13].any()
    x[:] = MARK
    assert len(encoder.embed(x).reasons) == 20  # the images are to blame, not the encoder


def test_an_encoder_that_works_no_more_is_an_error_and_not_that_of_the_images():
    works = [True]

    def embed(x):
        if not works[0]:
            raise OSError("connection lost")
        return means(x)[:, :2]

    encoder = as_encoder(own(embed))
    works[0] = False
    for n in (20, 1):  # one image too: a server takes samples one by one, and refuses one with a reason for ever
        with pytest.raises(
            UserError, match="The encoder own no longer works: an image cannot be encoded: connection lost"
        ):
            encoder.embed(images(n))


@pytest.mark.parametrize("begins", [2, 4])  # in the second batch, and while the images of the first are tried
def test_an_encoder_that_fails_for_some_calls_blames_no_image(begins):
    calls = []

    def embed(x):
        calls.append(len(x))
        if 2 + begins <= len(calls) < 2 + begins + 12:  # two calls are the trial
            raise OSError("connection lost")
        return marked(x, with_nan)

    encoder, x = as_encoder(own(embed)), images(20)
    if begins == 4:
        x[0] = MARK
    with pytest.raises(UserError, match="connection lost"):
        encoder.embed(x)
    calls[:] = [0] * 100  # it works again
    assert list(encoder.embed(x).reasons) == ([0] if begins == 4 else [])


def test_an_image_whose_failure_passes_gets_its_features():
    left = [0]

    def passing(found, rows):
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError
        return found

    encoder, x = as_encoder(own(lambda x: marked(x, passing))), images(20)
    x[13], left[0] = MARK, 2  # within its batch, and once alone
    found = encoder.embed(x)
    assert not found.reasons and np.allclose(found.features[13], MARK) and left[0] < 0


@pytest.mark.parametrize("name", ["name", "dim", "size", "batch", "digest", "embed"])
def test_an_attribute_that_cannot_be_read_is_refused(name):
    def read(self):
        sys.exit("no licence")

    rest = {"name": "own", "dim": 2, "size": SIZE, "batch": 8, "digest": "", "embed": lambda self, x: means(x)[:, :2]}
    encoder = type("Own", (), rest | {name: property(read)})()
    with pytest.raises(UserError, match=f"The attribute {name} of the encoder (own|Own) cannot be read: no licence"):
        as_encoder(encoder)


class Text:
    def __str__(self):
        sys.exit("no text")

    __index__ = __str__


@pytest.mark.parametrize("name", ["name", "dim", "size", "batch", "digest"])
def test_an_attribute_that_cannot_be_converted_is_refused(name):
    with pytest.raises(UserError, match=f"The attribute {name} of the encoder (own|Simple.*) cannot be read: no text"):
        as_encoder(SimpleNamespace(**(vars(own(lambda x: means(x)[:, :2])) | {name: Text()})))


@pytest.mark.parametrize("name", ["size", "batch", "dim"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_of_thousands_of_digits_is_refused(name, sign):
    with pytest.raises(UserError, match="The encoder own "):
        as_encoder(SimpleNamespace(**(vars(own(lambda x: means(x)[:, :2])) | {name: sign * 10**5000})))


def test_sizes_of_images_and_features_are_in_the_digest_of_code():
    """They may come from other files or the environment, which the digest of its file does not cover."""
    digests = set()
    for size, dim in ((8, 2), (16, 2), (8, 1)):
        given = SimpleNamespace(name="own", dim=dim, size=size, embed=lambda x, dim=dim: means(x)[:, :dim])
        digests.add(as_encoder(given).digest)
    assert len(digests) == 3


def test_how_numpy_treats_errors_is_not_changed_by_an_encoder():
    def embed(x):
        np.seterr(all="raise")
        return means(x)[:, :2]

    before = np.geterr()
    as_encoder(own(embed)).embed(images(2))
    assert np.geterr() == before


def of_its_batch(x):
    found = means(x)[:, :2]
    return found - found.mean(0)


def random(x):
    return means(x)[:, :2] + np.random.default_rng().normal(size=(len(x), 2))


@pytest.mark.parametrize("embed", [of_its_batch, random])
def test_an_encoder_whose_features_depend_on_more_than_the_image_is_refused(embed):
    with pytest.raises(UserError, match="gives an image other features in another batch or at another time"):
        as_encoder(own(embed))


def test_an_encoder_that_prints_leaves_the_standard_output_alone(capsys, tmp_path, monkeypatch):
    (tmp_path / "loud_encoder.py").write_text(
        "print('loaded')\ndef embed(x):\n    print('called')\n    return x.mean((2, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    open_encoder("python:loud_encoder:embed").embed(images(2, 224))
    told = capsys.readouterr()
    assert not told.out and "loaded" in told.err and "called" in told.err


def test_an_encoder_that_keeps_the_standard_output_leaves_it_alone(capsys, tmp_path, monkeypatch):
    (tmp_path / "keeping_encoder.py").write_text(
        "from sys import stdout\ndef embed(x):\n    stdout.write('called')\n    return x.mean((2, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    open_encoder("python:keeping_encoder:embed").embed(images(2, 224))
    sys.modules["keeping_encoder"].stdout.write("alone")
    told = capsys.readouterr()
    assert told.out == "alone" and told.err == 3 * "called"


def test_an_encoder_that_closes_the_standard_output_closes_nothing(capsys):
    def embed(x):
        sys.stdout.close()
        return means(x)[:, :2]

    as_encoder(own(embed))
    print("out")  # noqa: T201
    print("err", file=sys.stderr)  # noqa: T201
    assert capsys.readouterr() == ("out\n", "err\n")


def test_threads_that_share_an_encoder_leave_the_standard_output_alone(capsys):
    both, alone, out = threading.Barrier(2, timeout=20), threading.Event(), sys.stdout

    def embed(x):
        print("called")  # noqa: T201
        if threading.current_thread() is not threading.main_thread():
            both.wait()  # both are within
            if threading.current_thread().name == "second":
                alone.wait(20)  # the first one leaves before
        return means(x)[:, :2]

    encoder = as_encoder(own(embed))
    threads = [threading.Thread(target=encoder.embed, args=(images(2),), name=name) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    threads[0].join()
    print("another thread")  # noqa: T201
    alone.set()
    threads[1].join()
    assert sys.stdout is out
    told = capsys.readouterr()
    assert told.out == "another thread\n" and told.err.count("called") == 4


@pytest.mark.parametrize("text", ["def embed(x):\n    raise SystemExit(0)\n", "raise SystemExit(0)\n"])
def test_an_encoder_that_exits_is_refused(tmp_path, monkeypatch, text):
    name = f"ending_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"The encoder python:{name}:embed cannot be"):
        open_encoder(f"python:{name}:embed")


def test_float64_and_float16_become_float32_and_complex_numbers_are_refused(recwarn):
    for kind in (np.float64, np.float16):
        assert (
            as_encoder(own(lambda x, kind=kind: means(x)[:, :2].astype(kind))).embed(images(3)).features.dtype == "f4"
        )
    with pytest.raises(UserError, match="complex"):
        as_encoder(own(lambda x: means(x)[:, :2] + 1j))
    with pytest.raises(UserError, match="infinity"):
        as_encoder(own(lambda x: means(x)[:, :2] * 1e300))
    assert not recwarn.list


@pytest.mark.parametrize("options", ["size=0", "std=0", "std=0.2,0.2,-1", "size=32&size=64", "batch=5000"])
def test_options_that_make_no_sense(tmp_path, options):
    with pytest.raises(UserError, match=r"must be greater than 0|names an option twice|a batch of 1 to 1,024"):
        open_encoder(f"onnx:{write_onnx(tmp_path / 'm.onnx')}?{options}")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("python:ours:embed?mean=0.5", "does not take the option mean: use size, batch"),
        ("python:ours:own?size=16", "does not take the option size: it takes none, so leave it out"),
        ("onnx:m.onnx?input=uint8", "does not take the option input: use size, batch, output"),
        ("onnx:m.onnx?std=0.1", "the option std, since it takes the pixels themselves: use size, batch, output"),
        ("onnx:f.onnx?input=uint8", "does not take the option input: use size, batch, mean, std, output"),
        ("torch:m.pt?output=x", "does not take the option output: use size, batch, mean, std, input"),
        (
            "torch:m.pt?input=uint8&mean=0",
            "the option mean, since it takes the pixels themselves: use size, batch, input",
        ),
        ("file:f.npz?size=8", "does not take the option size: it takes none, so leave it out"),
    ],
)
def test_an_option_that_the_encoder_does_not_take_is_refused(tmp_path, monkeypatch, text, reason):
    module("ours", monkeypatch, tmp_path, FUNCTION + OBJECT)
    write_onnx(tmp_path / "m.onnx")
    write_onnx(tmp_path / "f.onnx", kind=TensorProto.FLOAT)
    torch.jit.save(torch.jit.script(Averages()), "m.pt")
    np.savez("f.npz", features=np.ones((2, 2)), ids=["a", "b"])
    with pytest.raises(UserError, match=reason):
        open_encoder(text)
    if not text.startswith("file"):  # a state that names it still opens
        assert open_encoder(text, again=True).embed(images(2, SIZE if "own" in text else 8)).features.shape == (2, 3)


def test_features_do_not_depend_on_the_images_beside_them(tmp_path):
    seen = []
    encoder = as_encoder(own(lambda x: seen.append(len(x)) or means(x)[:, :2]))
    x = images(21)
    whole = encoder.embed(x).features
    parts = np.concatenate([encoder.embed(x[:1]).features, encoder.embed(x[1:]).features])
    assert np.array_equal(whole, parts) and set(seen) == {8}


def test_a_saved_encoder_is_opened_again_unless_it_changed_or_runs_code(tmp_path):
    path = write_onnx(tmp_path / "m.onnx")
    encoder = open_encoder(f"onnx:{path}")
    assert reopen(encoder.text, encoder.digest, "state").digest == encoder.digest
    write_onnx(path, scale=2)
    with pytest.raises(UserError, match=r"state was made with a different encoder or version than onnx:m\.onnx"):
        reopen(encoder.text, encoder.digest, "state")
    for text in ("python:os:getcwd", f"torch:{path}"):
        with pytest.raises(UserError, match="which runs code: name it again with --encoder"):
            reopen(text, encoder.digest, "state")


# ---------------------------------------------------------------- cache and images


def test_the_cache_returns_what_was_kept_and_nothing_that_is_damaged(tmp_path):
    encoder, other = (open_encoder(f"onnx:{write_onnx(tmp_path / 'm.onnx', scale=s)}") for s in (1, 2))
    cache, row = FeatureCache(encoder, tmp_path / "cache"), np.array([1, 2, 3], np.float32)
    cache.keep({b"a": row, b"b": 2 * row})
    assert np.array_equal(cache.find([b"a", b"c"])[b"a"], row) and len(cache.find([b"a", b"c"])) == 1
    assert not FeatureCache(other, tmp_path / "cache").find([b"a"])  # of another encoder
    cache._database.execute("UPDATE features SET value = substr(value, 1, 19) || x'00' WHERE key = x'61'")
    assert set(cache.find([b"a", b"b"])) == {b"b"}
    cache.close()
    cache.path.write_bytes(b"no database" * 1000)
    anew = FeatureCache(encoder, tmp_path / "cache")
    assert not anew.find([b"a"])
    anew.keep({b"a": row})
    assert np.array_equal(anew.find([b"a"])[b"a"], row)
    anew.close()
    (tmp_path / "file").write_text("no folder")
    nowhere = FeatureCache(encoder, tmp_path / "file")
    nowhere.keep({b"a": row})
    assert not nowhere.find([b"a"])  # it only saves time


def test_a_cache_that_becomes_damaged_is_used_no_more_and_begins_anew(tmp_path):
    encoder = open_encoder(f"onnx:{write_onnx(tmp_path / 'm.onnx')}")
    cache, rows = FeatureCache(encoder, tmp_path), {bytes([k]): np.full(3, k, np.float32) for k in range(200)}
    cache.keep(rows)
    cache.close()
    content = bytearray(cache.path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)  # all pages but the first
    cache.path.write_bytes(content)
    damaged = FeatureCache(encoder, tmp_path)
    assert not damaged.find(list(rows))
    damaged.keep(rows)
    damaged.close()
    again = FeatureCache(encoder, tmp_path)
    again.keep(rows)
    assert len(again.find(list(rows))) == 200


class Clock:
    hour = 0

    def time(self) -> int:
        return 3600 * self.hour


def test_the_cache_has_a_largest_size_and_what_was_used_last_stays(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(cache_module, "time", clock)
    monkeypatch.setenv("PUREREPLAY_CACHE_MIB", "1")
    encoders = [SimpleNamespace(dim=256, digest=32 * name) for name in "abc"]
    folder = tmp_path / "cache"
    for age, encoder in zip((300, 200), encoders, strict=False):  # two others; the first was not used for longer
        other = FeatureCache(encoder, folder)
        other.keep({bytes([k, k]): np.zeros(256, np.float32) for k in range(250)})
        other.close()
        os.utime(other.path, (time.time() - age,) * 2)
    cache = FeatureCache(encoders[2], folder)
    keys = [k.to_bytes(2, "big") for k in range(3_000)]
    for start in range(0, 3_000, 100):
        clock.hour += 1
        cache.keep({key: np.zeros(256, np.float32) for key in keys[start : start + 100]})
        assert keys[0] in cache.find(keys[:1])  # used all the time
        kept = {path.name for path in folder.glob("*.sqlite")}
        if len(kept) == 2:
            assert kept == {f"{32 * name}.sqlite" for name in "bc"}
    found = cache.find(keys)
    assert keys[-1] in found and keys[1] not in found and 100 < len(found) < 300
    cache.close()  # without the journal, and with one piece of 100 images more
    assert len(kept) == 1 and sum(path.stat().st_size for path in folder.iterdir()) < 1.5 * 2**20


def test_the_size_of_the_cache_is_a_number_and_may_be_nothing(tmp_path, monkeypatch):
    encoder = open_encoder(f"onnx:{write_onnx(tmp_path / 'm.onnx')}")
    monkeypatch.setenv("PUREREPLAY_CACHE_MIB", "0")
    cache = FeatureCache(encoder, tmp_path / "cache")
    cache.keep({b"a": np.zeros(3, np.float32)})
    assert not cache.find([b"a"]) and not (tmp_path / "cache").exists()
    for text in ("much", "-1", "1.5"):
        monkeypatch.setenv("PUREREPLAY_CACHE_MIB", text)
        with pytest.raises(UserError, match=r"PUREREPLAY_CACHE_MIB is .*: use a whole number of MiB"):
            FeatureCache(encoder, tmp_path / "cache")


def test_images_keep_their_aspect():
    wide = Image.fromarray(np.repeat(np.arange(0, 200, 10, dtype=np.uint8)[None], 10, 0))  # 20 × 10
    found = as_input(wide, 20)
    assert found.shape == (3, 20, 20) and np.array_equal(found[0, 5:15], np.asarray(wide))
    assert np.array_equal(found[0, 0], found[0, 5])  # the edge is repeated
    assert np.array_equal(as_inputs([np.asarray(wide)[None]], 20)[0], found)


def test_the_onnx_fixture_is_a_valid_model(tmp_path):
    onnx.checker.check_model(onnx.load(write_onnx(tmp_path / "m.onnx")))
