"""The four training loops, side by side: plain, cpu_mlp, listed and cuda/."""
