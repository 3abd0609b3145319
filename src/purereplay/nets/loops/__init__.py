"""The training loops. Each trains K networks of one shape side by side; `base` has their common protocol.

The engine picks the first one that applies:

listed      jobs that list their batches (`ListedJob`), on any device
cuda/       images on CUDA in bf16, if Triton is installed: MLP and ResNet-18, in hand-written kernels
cpu_mlp     contrastive training of an MLP on the CPU in float32, in threads and without autograd (`cpu_mlp_step`)
plain       everything else: any network on any device, by autograd and PyTorch's Adam
"""
