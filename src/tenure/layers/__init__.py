"""Building blocks of models; attention and linear layers are seams that kernels fill."""
