"""The paper's baselines and some newer ones, one file each with its settings and its registry entry.

`online` and `scratch` hold what they share, `pool` the rows that a training step uses, `augmentation` random views.
"""
