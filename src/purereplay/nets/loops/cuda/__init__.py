"""Training on CUDA by hand-written Triton kernels, for networks of known shape. Which file to open for what:

loop          `CudaLoop`: draws, views, steps, capture as a CUDA graph
parameters    weights and moments of K networks as flat tensors. update: Adam's step on them
average       moving average of the weights, of joint jobs
heads         head and loss. linear: linear layers, and the MLP
resnet        ResNet-18. layers: its convolutions and their buffers. shapes: their geometry and tile sizes
kernels       kernels of products, losses and Adam. view_kernels: kernels of random numbers and views
conv, conv_gradients, stem, norms, pools    kernels of ResNet-18
"""
