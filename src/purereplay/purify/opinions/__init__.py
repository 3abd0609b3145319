"""Several opinions about every label, combined into one calibrated probability; no truth and no training network.

features (`feature_map`) → out-of-sample scores of a few models (`members`) → one pool and a noise matrix (`pool`) →
verdicts (`verdicts`) and a classifier (`model`).
"""

from purereplay.purify.noise_rate import NoiseTable
from purereplay.purify.opinions.feature_map import FeatureMap
from purereplay.purify.opinions.members import IMAGE_KINDS
from purereplay.purify.opinions.model import Model, choose_model
from purereplay.purify.opinions.pool import posterior
from purereplay.purify.opinions.stages import JudgingShare
from purereplay.purify.opinions.verdicts import Verdicts, judge_labels

__all__ = [
    "IMAGE_KINDS",
    "FeatureMap",
    "JudgingShare",
    "Model",
    "NoiseTable",
    "Verdicts",
    "choose_model",
    "judge_labels",
    "posterior",
]
