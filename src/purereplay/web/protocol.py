"""The Open Inference Protocol, version 2: metadata, readiness and inference, as JSON or with binary tensors.

Input     images         UINT8  (n, channels, height, width), in the shape that the state's images have;
          features       FP32   (n, dim) instead, if the state has an encoder
Outputs   probabilities  FP32   (n, labels)
          label          BYTES  (n,), the most likely label

Binary tensors follow the JSON header in the body. The header `Inference-Header-Content-Length` tells where they begin,
and each tensor has the parameter `binary_data_size`. A text in a binary tensor follows its length in four bytes.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from purereplay import __version__
from purereplay.web.batching import Answer, Inputs
from purereplay.web.gate import Json, Problem, read_body, read_json
from purereplay.web.intake import MAX_ITEMS
from purereplay.web.interface import Interface
from purereplay.web.snapshots import Snapshot
from purereplay.web.tensors import bytes_of, flat, floats_of

OUTPUTS = ("probabilities", "label")
_SPLIT = "Inference-Header-Content-Length"
_MAX_TEXT = 200  # characters of an id


class _Output(NamedTuple):
    name: str
    binary: bool


class Protocol:
    """The routes under /v2."""

    def __init__(self, interface: Interface) -> None:
        self.interface = interface

    async def server(self, request: Request) -> Response:
        facts = {"name": "purereplay", "version": __version__, "extensions": ["binary_tensor_data"]}
        return Json(facts)

    async def live(self, request: Request) -> Response:
        return Json({"live": True})

    async def ready(self, request: Request) -> Response:
        is_ready = self.interface.snapshots.current is not None
        return Json({"ready": is_ready}, 200 if is_ready else 503)

    async def model_ready(self, request: Request) -> Response:
        self._named(request)
        is_ready = self.interface.snapshots.current is not None
        facts = {"name": self.interface.name, "ready": is_ready}
        return Json(facts, 200 if is_ready else 503)

    async def metadata(self, request: Request) -> Response:
        snapshot = self._snapshot(request)
        outputs = [
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(snapshot.labels)]},
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
        ]
        return Json(
            {
                "name": self.interface.name,
                "versions": [snapshot.version],
                "platform": "purereplay",
                "inputs": [{"name": _input(snapshot), "datatype": _datatype(snapshot), "shape": [-1, *snapshot.shape]}],
                "outputs": outputs,
            }
        )

    async def infer(self, request: Request) -> Response:
        body = await read_body(request, self.interface.max_bytes)
        snapshot = self._snapshot(request)
        header, tail = _split(request.headers.get(_SPLIT), body)
        identity, outputs, images = await read_json(header, lambda values: _asked(values, tail, snapshot))
        answer = await self.interface.classify(images)
        facts: dict[str, Any] = {"model_name": self.interface.name, "model_version": answer.snapshot.version}
        if identity is not None:
            facts["id"] = identity
        return _response(facts, answer, outputs)

    def _named(self, request: Request) -> None:
        name = request.path_params["name"]
        if name != self.interface.name:
            raise Problem(404, f"There is no model {name[:100]!r}: the model here is {self.interface.name!r}.")

    def _snapshot(self, request: Request) -> Snapshot:
        """Return the snapshot in use; Problem if the request names another model or version."""
        self._named(request)
        snapshot = self.interface.ready()
        version = request.path_params.get("version", snapshot.version)
        if version != snapshot.version:
            raise Problem(404, f"There is no version {version[:100]!r}: the model has {snapshot.version!r} now.")
        return snapshot


def _split(length: str | None, body: bytes) -> tuple[bytes, bytes]:
    """Return the JSON part of a body, and the binary tensors after it."""
    if length is None:
        return body, b""
    if not (length.isascii() and length.isdecimal()) or len(length) > 12 or int(length) > len(body):
        raise Problem(400, f"The header {_SPLIT} must be a number up to the length of the body.")
    return body[: int(length)], body[int(length) :]


def _asked(values: dict[str, Any], tail: bytes, snapshot: Snapshot) -> tuple[str | None, list[_Output], Inputs]:
    """Return id, outputs and inputs of a request for inference."""
    return _text_or_none(values.get("id")), _outputs(values), _inputs(values.get("inputs"), tail, snapshot)


def _text_or_none(value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > _MAX_TEXT):
        raise Problem(400, f"The id must be text of at most {_MAX_TEXT} characters.")
    return value


def _parameters(values: object) -> dict[str, Any]:
    found = values.get("parameters", {}) if isinstance(values, dict) else None
    if not isinstance(found, dict):
        raise Problem(400, "The parameters must be a JSON object.")
    return found


def _outputs(values: dict[str, Any]) -> list[_Output]:
    """Return the outputs that a request wants; all if it names none."""
    binary = _parameters(values).get("binary_data_output") is True
    wanted = values.get("outputs")
    if wanted is None or wanted == []:
        return [_Output(name, binary) for name in OUTPUTS]
    if not isinstance(wanted, list) or len(wanted) > len(OUTPUTS):
        raise Problem(400, f"`outputs` must be a list of outputs; there are {' and '.join(OUTPUTS)}.")
    found: list[_Output] = []
    for each in wanted:
        name = each.get("name") if isinstance(each, dict) else None
        if name not in OUTPUTS or name in [known.name for known in found]:
            raise Problem(400, f"`outputs` must name {' and '.join(OUTPUTS)}, each at most once.")
        found.append(_Output(name, _parameters(each).get("binary_data", binary) is True))
    return found


def _input(snapshot: Snapshot) -> str:
    return "features" if snapshot.takes_features else "images"


def _datatype(snapshot: Snapshot) -> str:
    return "FP32" if snapshot.takes_features else "UINT8"


def _inputs(inputs: object, tail: bytes, snapshot: Snapshot) -> Inputs:
    """Return the images or features of a request; Problem if shape, type or size is not right."""
    name, datatype = _input(snapshot), _datatype(snapshot)
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Problem(400, f"`inputs` must be a list with one input, {name!r}.")
    [tensor] = inputs
    if tensor.get("name") != name:
        raise Problem(400, f"The input must have the name {name!r}.")
    if tensor.get("datatype") != datatype:
        raise Problem(400, f"The input {name!r} must have the datatype {datatype!r}.")
    given = tensor.get("shape")
    if not isinstance(given, list) or not all(type(n) is int for n in given) or given[1:] != list(snapshot.shape):
        raise Problem(400, f"The input {name!r} must have the shape {[-1, *snapshot.shape]}.")
    if not 0 < given[0] <= MAX_ITEMS:
        raise Problem(400, f"The input {name!r} must have 1 to {MAX_ITEMS:,} images.")
    size = math.prod(given)
    n_bytes = _parameters(tensor).get("binary_data_size")
    if n_bytes is not None:
        kind = np.dtype("<f4" if snapshot.takes_features else np.uint8)
        if type(n_bytes) is not int or "data" in tensor or not n_bytes == len(tail) == size * kind.itemsize:
            raise Problem(400, f"The binary data of {name!r} must have {size * kind.itemsize:,} bytes.")
        return _finite(np.frombuffer(tail, kind).reshape(given), name)
    if tail:
        raise Problem(400, "The body has binary data that belongs to no input.")
    return _numbers(tensor.get("data"), given, snapshot)


def _numbers(data: object, shape: list[int], snapshot: Snapshot) -> Inputs:
    """Return numbers from JSON; Problem if they are others than the shape and the type of the input say."""
    name = _input(snapshot)
    try:
        values = flat(data, shape)
        found = floats_of(values) if snapshot.takes_features else bytes_of(values)
    except ValueError:
        what = "numbers" if snapshot.takes_features else "whole numbers from 0 to 255"
        size = math.prod(shape)
        raise Problem(400, f"The data of {name!r} must be {size:,} {what}, flat or nested as {shape}.") from None
    return _finite(found.reshape(shape), name)


def _finite(values: Inputs, name: str) -> Inputs:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise Problem(400, f"The data of {name!r} has a value that is not finite.")
    return values


def _response(facts: dict[str, Any], answer: Answer, outputs: list[_Output]) -> Response:
    tensors, tail = [], b""
    for name, binary in outputs:
        datatype, shape, data, raw = _tensor(name, answer)
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if binary:
            tensor["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        else:
            tensor["data"] = data
        tensors.append(tensor)
    facts["outputs"] = tensors
    if not tail:
        return Json(facts)
    header = json.dumps(facts).encode()
    return Response(header + tail, media_type="application/octet-stream", headers={_SPLIT: str(len(header))})


def _tensor(name: str, answer: Answer) -> tuple[str, list[int], list[Any], bytes]:
    """Return datatype, shape, data and binary data of an output."""
    found = answer.probabilities
    if name == "probabilities":
        values = found.astype(np.float32)
        return "FP32", list(values.shape), values.ravel().tolist(), values.astype("<f4").tobytes()
    labels = [answer.snapshot.labels[code] for code in found.argmax(1).tolist()]
    raw = b"".join(struct.pack("<I", len(text)) + text for text in (label.encode() for label in labels))
    return "BYTES", [len(labels)], labels, raw
