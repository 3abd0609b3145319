"""Encoders from ONNX files, run by onnxruntime. Such a file holds operations and weights, and no code.

An input of uint8 gets the pixels. An input of floats gets them in [0, 1], less the mean and divided by the standard
deviation, by default those of ImageNet. The layout is (n, 3, H, W), or (n, H, W, 3) if the input's last axis is 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from purereplay.data.encoders.base import BATCH, SIZE, Features, pooled
from purereplay.data.encoders.options import Normal, Options
from purereplay.data.encoders.pictures import Pixels
from purereplay.errors import UserError

_TYPES = {"tensor(uint8)": None, "tensor(float)": np.float32, "tensor(float16)": np.float16}


class OnnxEncoder:
    """An encoder from the bytes of an ONNX file."""

    def __init__(self, content: bytes, path: Path, options: Options, n_threads: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise UserError("onnx:FILE needs onnxruntime: pip install 'purereplay[onnx]'.") from None
        self.name = f"onnx:{path.name}"
        chosen = onnxruntime.SessionOptions()
        chosen.intra_op_num_threads = n_threads
        chosen.log_severity_level = 4  # errors are raised, and named below
        # what was digested is what runs: weights in another file are looked for in a folder that cannot exist
        chosen.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path / "none"))
        try:
            self._session = onnxruntime.InferenceSession(content, chosen, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has error types of its own
            reason = " ".join(str(error).split())[:200].rstrip(".")
            if "external data" in reason.lower():
                raise UserError(
                    f"{path} has its weights in another file, which is not read: save both in one file, as by "
                    "torch.onnx.export(…, external_data=False)."
                ) from None
            raise UserError(f"{path} cannot be used as an ONNX model: {reason}; export it again.") from None
        self._read_input(path, options)
        outputs = [own.name for own in self._session.get_outputs()]
        self._output = options.output or outputs[0]
        if self._output not in outputs:
            raise UserError(f"{path} has no output {self._output!r}; its outputs are: {', '.join(outputs)}.")
        self.dim: Any = None  # found by the first trial

    def _read_input(self, path: Path, options: Options) -> None:
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _TYPES:
            found = ", ".join(f"{own.name} {own.type} {own.shape}" for own in inputs)
            raise UserError(f"{path} must take one batch of images, uint8 or float (n, 3, H, W), not {found}.")
        [own] = inputs
        self._input, self._type = own.name, _TYPES[own.type]
        self.takes_pixels = self._type is None
        self._channels_last = own.shape[3] == 3 and own.shape[1] != 3
        count: Any = own.shape[0]
        sides: list[Any] = own.shape[1:3] if self._channels_last else own.shape[2:]
        fixed = {side for side in sides if isinstance(side, int)}
        if len(fixed) > 1:
            raise UserError(f"{path} takes images of {sides[1]} × {sides[0]} pixels, but they must be square.")
        side = fixed.pop() if fixed else None
        self.size = options.size or side or SIZE
        if side not in (None, self.size):
            given = f"{self.size:,} × {self.size:,}"
            raise UserError(f"{path} takes images of {side:,} × {side:,} pixels, not {given}: leave the size out.")
        own_batch = count if isinstance(count, int) else BATCH
        if isinstance(count, int) and options.batch not in (None, count):
            raise UserError(f"{path} takes {count} images at once, not {options.batch}: leave the batch out.")
        self.batch = own_batch if options.batch is None else options.batch
        self._normal = options.normal or Normal()

    def embed(self, images: Pixels) -> Features:
        given: Any = images if self._type is None else self._normal.apply(images).astype(self._type)
        given = np.ascontiguousarray(given.transpose(0, 2, 3, 1) if self._channels_last else given)
        [found] = self._session.run([self._output], {self._input: given})
        return pooled(found, self.name)
