"""Files of an exported classifier: ONNX, a program of `torch.export`, or tensors; each compared with the state's own.

Before a file is kept, it classifies up to 1,000 samples of the state. A difference of more than `TOLERANCE` in any
probability is an error, and nothing is written.

Files are given away: they hold no image of the state, and no path of this machine. PyTorch would add an example of the
input, and with every operation the source lines that it comes from.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from purereplay.data.files import whole_file
from purereplay.data.packing import pack_tensors, unpack_tensors
from purereplay.errors import UserError
from purereplay.live.export.graphs import graph_of
from purereplay.live.opinion import Opinion
from purereplay.live.predict import Predictor
from purereplay.nets.inference import Classifier

TOLERANCE = 1e-4  # of a probability
NAMES = {"onnx": "model.onnx", "torch": "model.pt2", "safetensors": "model.safetensors"}
_AT_ONCE = 100  # images

Images = NDArray[np.uint8] | NDArray[np.float32]  # images, or their features by an encoder
Real = NDArray[np.float64]


class Check(NamedTuple):
    """Comparison of a file with the state's own classifier."""

    n: int  # images
    difference: float  # largest of any probability; NaN if one of them is


def write_model(form: str, classifier: Predictor, facts: dict[str, Any], images: Images, out: Path) -> Check:
    """Write a classifier to `out`; it is compared first, on images uint8 (n, C, H, W) or features float32 (n, dim)."""
    write = {"onnx": _write_onnx, "torch": _write_torch, "safetensors": _write_tensors}[form]
    with whole_file(out) as part:
        predict = write(classifier, facts, images, part)
        check = _compared(classifier, predict, images)
        if math.isnan(check.difference):
            raise UserError(
                "The exported classifier gives a probability that is not a number, so nothing is written: choose "
                "another --to."
            )
        if check.difference > TOLERANCE:
            raise UserError(
                f"The exported classifier differs from the state's own by {check.difference:.1e} in a probability, "
                f"more than {TOLERANCE:g}, so nothing is written: choose another --to."
            )
    return check


def input_name(images: Images) -> str:
    """Return the name of the input of an exported classifier."""
    return "images" if images.dtype == np.uint8 else "features"


def _compared(classifier: Predictor, predict: Callable[[Images], Real], images: Images) -> Check:
    largest = 0.0
    for start in range(0, len(images), _AT_ONCE):
        some = images[start : start + _AT_ONCE]
        own = classifier.probabilities(torch.from_numpy(some)).cpu().numpy()
        largest = float(np.maximum(largest, np.abs(own - predict(some)).max()))  # `max` would drop NaN
    return Check(len(images), largest)


def _program(classifier: Predictor, images: Images) -> Any:
    """Return the classifier as a program of `torch.export`, for any number of images."""
    example = torch.from_numpy(np.zeros((2, *images.shape[1:]), images.dtype))  # it is saved with the program
    with torch.no_grad(), _quiet():
        program = torch.export.export(graph_of(classifier), (example,), dynamic_shapes=({0: torch.export.Dim("n")},))
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def _strip(message: Any) -> None:
    """Remove the notes of PyTorch from a part of an ONNX model, and from all parts of it."""
    for name in ("doc_string", "metadata_props"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                _strip(part)


def _write_onnx(classifier: Predictor, facts: dict[str, Any], images: Images, part: Path) -> Callable[[Images], Real]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # PyTorch needs it
    except ModuleNotFoundError as error:
        raise UserError(
            f"The export to ONNX needs the package {error.name}: install it with `pip install 'purereplay[export]'`."
        ) from None
    with _quiet():
        made = torch.onnx.export(
            _program(classifier, images),
            input_names=[input_name(images)],
            output_names=["probabilities"],
            dynamo=True,
            verbose=False,
        )
        assert made is not None
        model = made.model_proto
    _strip(model)
    onnx.helper.set_model_props(model, {name: str(value) for name, value in facts.items()})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.checker.check_model(model)
    part.write_bytes(model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(part.read_bytes(), options, providers=["CPUExecutionProvider"])
    return lambda some: np.asarray(session.run(None, {input_name(some): some})[0], np.float64)


def _write_torch(classifier: Predictor, facts: dict[str, Any], images: Images, part: Path) -> Callable[[Images], Real]:
    with _quiet(), part.open("wb") as file:
        torch.export.save(
            _program(classifier, images), file, extra_files={name: str(value) for name, value in facts.items()}
        )
    with _quiet(), part.open("rb") as written:
        module = torch.export.load(written).module()

    def predict(some: Images) -> Real:
        with torch.no_grad():
            return np.asarray(module(torch.from_numpy(some)).numpy(), np.float64)

    return predict


def _write_tensors(
    classifier: Predictor, facts: dict[str, Any], images: Images, part: Path
) -> Callable[[Images], Real]:
    """Write the tensors of the classifier; the copy that is compared has those of the file."""
    if isinstance(classifier, Opinion):
        part.write_bytes(pack_tensors(classifier.tensors(), facts)[0])
        saved = unpack_tensors(part).tensors
        copy: Predictor = classifier.with_tensors(saved)
    else:
        assert isinstance(classifier, Classifier)
        part.write_bytes(pack_tensors(classifier.state, facts)[0])
        copy = Classifier(classifier.network, unpack_tensors(part).tensors, classifier.image_shape)
    return lambda some: np.asarray(copy.probabilities(torch.from_numpy(some)).cpu().numpy(), np.float64)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings of the exporter about itself from the user."""
    log = logging.getLogger("torch.onnx")
    before, log.level = log.level, logging.ERROR
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            log.setLevel(before)
