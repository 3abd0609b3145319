"""The scikit-learn interface: a classifier of noisily labelled samples, its turns of threads, and its saved files."""

from purereplay.estimator.classifier import NoiseEstimate, Purified, SelfPurifiedClassifier

__all__ = ["NoiseEstimate", "Purified", "SelfPurifiedClassifier"]
