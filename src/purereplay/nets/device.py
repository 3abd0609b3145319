"""Choice of the training device and of the precision of matrix products."""

from typing import Literal, cast, get_args

import torch

from purereplay.errors import UserError

DEVICES = ("cpu", "cuda", "auto")
Precision = Literal["float32", "tf32", "bf16"]


def pick_device(name: str) -> str:
    """Resolve "auto" to CUDA if available, and check other names."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UserError(f"The device {name!r} is unknown: choose cpu, cuda or auto.")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("No CUDA device is available: choose the device cpu.")
    return name


def pick_precision(name: str, device: str) -> Precision:
    """Resolve "auto" to bf16 on CUDA and float32 on the CPU, and check other names."""
    if name == "auto":
        return "bf16" if device == "cuda" else "float32"
    if name not in get_args(Precision):
        raise UserError(f"The precision {name!r} is unknown: choose {', '.join(get_args(Precision))} or auto.")
    if name != "float32" and device == "cpu":
        raise UserError(f"The precision {name} is for CUDA: the CPU computes in float32.")
    return cast(Precision, name)
