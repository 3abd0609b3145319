"""Training steps written as a few kernels: what the engine runs on a CUDA device for networks of known shape."""
