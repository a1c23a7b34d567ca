"""Triton kernels and CUDA graphs of training steps, in place of torch operators on GPUs."""

from showattendtell.models.kernels import registered

registered.update(kernels=f"{__name__}.kernels", steps=f"{__name__}.steps")
