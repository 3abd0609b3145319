"""Encoders that are PyTorch modules: files of TorchScript or torch.export, and models of timm and Hugging Face.

A torch file is a program, which its author wrote: open only files that you trust. Weights in it are read with
`weights_only`, and compiled libraries in it are refused. Models of timm and Hugging Face are read from their weights
alone, without code of their authors.
"""

from __future__ import annotations

import io
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from purereplay.data.encoders.base import BATCH, SIZE, Features, digest_of, pooled
from purereplay.data.encoders.options import Normal, Options
from purereplay.data.encoders.pictures import Pixels
from purereplay.errors import UserError

_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


class TorchEncoder:
    """An encoder that is a function of a batch of images."""

    dim: Any = None  # found by the first trial

    def __init__(self, name: str, forward: Callable[[Tensor], Any], options: Options) -> None:
        self.name, self._forward = name, forward
        self.size, self._normal, self.takes_pixels = options.size or SIZE, options.normal or Normal(), options.pixels
        self.batch = BATCH if options.batch is None else options.batch

    def embed(self, images: Pixels) -> Features:
        given = torch.from_numpy(images if self.takes_pixels else self._normal.apply(images))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self._forward(given)
        found = found[0] if isinstance(found, tuple | list) else found
        return pooled(found.detach().cpu().float().numpy(), self.name)


def torch_file(content: bytes, path: Path, options: Options) -> TorchEncoder:
    """Return the encoder in a file of TorchScript or torch.export."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        raise UserError(f"{path} is not a file of torch.jit.save or torch.export.save.") from None
    if any("/aotinductor/" in f"/{name}" for name in names):
        raise UserError(f"{path} holds a compiled library, which is not loaded: save it with torch.export.save.")
    is_script = any(name.endswith("/constants.pkl") for name in names)
    try:
        with warnings.catch_warnings(), _weights_only():
            warnings.simplefilter("ignore")  # deprecations
            module: Any
            if is_script:
                module = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()  # type: ignore[no-untyped-call]
            else:
                module = torch.export.load(io.BytesIO(content)).module()
    except Exception as error:  # any, for a damaged file
        reason = str(error).strip().partition("\n")[0].rstrip(".")[:200]
        raise UserError(f"{path} is not a file of torch.jit.save or torch.export.save: {reason}.") from None
    return TorchEncoder(f"torch:{path.name}", module, options)


@contextmanager
def _weights_only() -> Iterator[None]:
    """Read every file of PyTorch within the block with weights_only: nothing is unpickled without restrictions."""
    before = os.environ.get(_FORCED)
    os.environ[_FORCED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCED]
        else:
            os.environ[_FORCED] = before


def timm_model(name: str, options: Options) -> tuple[TorchEncoder, str]:
    """Return a model of timm with its weights and without its classifier, and the digest of its weights."""
    timm = _installed("timm", f"timm:{name}")
    with _model_errors(f"timm:{name}"):
        model = timm.create_model(name, pretrained=True, num_classes=0).eval()
        facts = import_module("timm.data").resolve_model_data_config(model)
    normal = Normal(tuple(map(float, facts["mean"])), tuple(map(float, facts["std"])))
    own = Options(options.size or int(facts["input_size"][-1]), options.normal or normal, batch=options.batch)
    return TorchEncoder(f"timm:{name}", model, own), weights_digest(model)


def hf_model(name: str, options: Options) -> tuple[TorchEncoder, str]:
    """Return a model of Hugging Face transformers, and the digest of its weights."""
    transformers = _installed("transformers", f"hf:{name}")
    with _model_errors(f"hf:{name}"):
        model = transformers.AutoModel.from_pretrained(name, trust_remote_code=False, use_safetensors=True).eval()
    facts: dict[str, Any] = {}  # not needed, and often not there, if the user names them
    if options.size is None or options.normal is None:
        with _model_errors(
            f"hf:{name}", f"; without an image processor, name all of hf:{name}?size=224&mean=0.5&std=0.5"
        ):
            facts = transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False).to_dict()
    model = getattr(model, "vision_model", model)  # of a pair of a text and an image model
    size = facts.get("crop_size") or facts.get("size") or {}
    side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge") or SIZE
    default = Normal()
    mean, std = (tuple(facts.get(f"image_{own}") or getattr(default, own)) for own in ("mean", "std"))

    def forward(images: Tensor) -> Tensor:
        found = model(pixel_values=images)
        one = getattr(found, "pooler_output", None)
        of_all: Tensor = found.last_hidden_state[:, 0] if one is None else one
        return of_all

    own = Options(options.size or int(side), options.normal or Normal(mean, std), batch=options.batch)
    return TorchEncoder(f"hf:{name}", forward, own), weights_digest(model)


def weights_digest(model: torch.nn.Module) -> str:
    """Return a digest of all weights of a model."""
    parts: list[str | bytes] = []
    for name, t in sorted(model.state_dict().items()):
        own = t.detach().cpu().contiguous().reshape(-1)
        parts += [f"{name} {t.dtype} {tuple(t.shape)}", own.view(torch.uint8).numpy().tobytes() if own.numel() else b""]
    return digest_of(*parts)


def _installed(module: str, text: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:  # any: an installed library may not fit the installed PyTorch
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            raise UserError(f"The encoder {text} needs {module}: install it with `pip install {module}`.") from None
        raise UserError(f"The encoder {text} cannot be loaded: {module} cannot be imported ({error}).") from None


@contextmanager
def _model_errors(text: str, remedy: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # any: an unknown name, no connection, no weights
        reason = shorten(str(error), 200, placeholder=" …").rstrip(".") or type(error).__name__
        raise UserError(f"The encoder {text} cannot be loaded: {reason}{remedy}.") from None
