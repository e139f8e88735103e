"""Whole steps, or any function of tensors on a GPU, as one CUDA graph."""
