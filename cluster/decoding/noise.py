"""Counter-based Gumbel noise: the one source of randomness of a generation.

The noise of a token is a pure function of ``(request seed, absolute position, token id)``. There is no
generator state, so the same uniforms appear bit for bit on every device, whatever the batch, the block length
or the drafter, and a drafter that knows the seed can sample with the verifier's own noise (the coupling of
arXiv 2408.07978).

The hash is a keyed 32-bit mixer: two independent 32-bit keys are derived from (seed, position), and each token id
is mixed with both (two rounds of the "lowbias32" finaliser). Everything is wrapping int32 arithmetic, which CPU and
GPU compute identically.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def _signed32(value: int) -> int:
    """The int32 with the same bits as the unsigned 32-bit ``value``."""
    value &= _MASK32
    return value - (1 << 32) if value >= 1 << 31 else value


_MULTIPLIER_A = _signed32(0x7FEB352D)
_MULTIPLIER_B = _signed32(0x846CA68B)


def _mix_(x: Tensor) -> Tensor:
    """The lowbias32 finaliser, in place on an int32 tensor (logical shifts through masks)."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    x.mul_(_MULTIPLIER_A)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF))
    x.mul_(_MULTIPLIER_B)
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    return x


def _to_int32(x: Tensor) -> Tensor:
    """Keep the low 32 bits of an int64 tensor, as int32."""
    low = x.bitwise_and(_MASK32)
    return torch.where(low >= 1 << 31, low - (1 << 32), low).to(torch.int32)


def _keys(seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Two int32 keys per (seed, position); ``seeds [B]`` and ``positions [B, K]`` are int64."""
    low, high = _to_int32(seeds), _to_int32(seeds >> 32)  # [B], [B]
    place = _mix_(_to_int32(positions) ^ _signed32(0x9E3779B9))  # [B, K]
    first = _mix_(place ^ _mix_(low ^ _signed32(0x85EBCA6B))[:, None])  # [B, K]
    second = _mix_(first + _mix_(high ^ _signed32(0xC2B2AE35))[:, None])  # [B, K]
    return _mix_(first ^ second), second


def uniform(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Uniforms in (0, 1) for each token at each position of each row.

    Args:
        seeds: request seeds, ``[B]`` int64.
        positions: absolute token positions, ``[B, K]`` int64.
        token_ids: ids to draw for, ``[V]`` int64 (usually ``arange(vocabulary)``, or a drafter's reduced list).

    Returns:
        ``[B, K, V]`` float32 with 31 random bits. Small values keep their relative precision (2**-32 is the smallest),
        because the largest Gumbel values, the ones that decide an argmax, come from them.
    """
    first, second = _keys(seeds, positions)
    bits = _to_int32(token_ids)[None, None, :] ^ first[:, :, None]  # [B, K, V]
    bits = _mix_(bits).add_(second[:, :, None])
    bits = _mix_(bits).bitwise_and_(0x7FFFFFFF)
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_LARGEST_BELOW_ONE)


def gumbel(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise ``g(seed, position, token)``, ``[B, K, V]`` float32; arguments as in :func:`uniform`.

    ``argmax_x(log p(x) + g(x))`` is an exact sample of p. ``g = -log(-log(1 - u))``: the uniform's small values, which
    are the precise ones, become the large noise.
    """
    noise = uniform(seeds, positions, token_ids)
    return noise.neg_().log1p_().neg_().log_().neg_()
