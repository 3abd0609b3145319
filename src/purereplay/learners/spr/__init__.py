"""Self-Purified Replay: `learner` reads like the paper's algorithms, `filtering` is the filter of its buffers.

`settings` has every option and preset, `buffers` the queue of full delayed buffers. `build` makes a learner from its
settings and declares the entries of the registry.
"""
