"""Encoders: images to features by a network of the user's choice.

text such as `onnx:FILE` (`named`) → an encoder (`onnx_files`, `torch_models`, `user_code`, `feature_files`) → features
that are checked (`base`) and kept (`cache`).
"""

from purereplay.data.encoders.arrays import encoded_samples
from purereplay.data.encoders.base import CheckedEncoder, Embedded, Encoder
from purereplay.data.encoders.cache import FeatureCache
from purereplay.data.encoders.feature_files import FeatureFile
from purereplay.data.encoders.named import NONE, EncoderFacts, as_encoder, check_same, open_encoder, reopen, runs_code

__all__ = [
    "NONE",
    "CheckedEncoder",
    "Embedded",
    "Encoder",
    "EncoderFacts",
    "FeatureCache",
    "FeatureFile",
    "as_encoder",
    "check_same",
    "encoded_samples",
    "open_encoder",
    "reopen",
    "runs_code",
]
