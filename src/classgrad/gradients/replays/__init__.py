"""Pieces of eager steps on a GPU that are recorded as CUDA graphs and replayed, to the same bits."""
