"""Learners: `base` is their interface, `registry` the list of them, `settings` the way their settings are declared.

`spr/` is Self-Purified Replay, `baselines/` the paper's comparison methods, `robust/` the losses against wrong labels.
`recorded` wraps a learner for users' own data, `renamed` reads settings of earlier versions.
"""
