"""Networks and their training. Which file to open for what:

networks    Network = backbone + head, its state as a dict of tensors; MLP. resnet: the ResNet-18 backbone
views       random views of images and feature vectors. augment: CutMix, shifts and flips of supervised batches
losses      NT-Xent (paper, equation 1) and cross-entropy
draws       random numbers as a function of (key, step, position), and the enum of their streams
steps       learning rate, batch and loss of one training step, made of the above
technique   interface by which a learner changes the loss or the samples of a step
inference   features and predictions of a trained network

jobs        the training requests of learners, with their recipes
engine      `Engine.train`: groups jobs and picks a loop for each group
lockstep    runs learners from request to request, so that their jobs train side by side
device      choice of device and precision

loops/      the four training loops: plain, cpu_mlp, listed and cuda
"""
