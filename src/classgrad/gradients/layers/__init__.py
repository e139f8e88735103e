"""The layers the fused engine knows; importing this package enters their rules."""

from classgrad.gradients.layers import _conv, _embedding, _linear, _normalization

__all__ = ["_conv", "_embedding", "_linear", "_normalization"]
