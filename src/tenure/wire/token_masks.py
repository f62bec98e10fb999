"""Long lists of token ids in sampling parameters, packed: as many as the vocabulary has, to be read in one go."""

from array import array

import msgspec

from tenure.sampling import SamplingParams

_FEW = 1024
"""So many ids, over all lists, are not worth packing."""


class TokenMasks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Ids as 32-bit ints, biases as doubles, as the machine has them; `biases` belong to `bias_ids`."""

    stop_ids: bytes
    allowed_ids: bytes
    bias_ids: bytes
    biases: bytes


class PackedSampling(msgspec.Struct, frozen=True):
    """Sampling parameters, whose long lists are in `masks`."""

    params: SamplingParams
    masks: TokenMasks | None = None


def detach(sampling: SamplingParams) -> PackedSampling:
    """Take the lists out, if they are long."""
    stop, allowed, bias = sampling.stop_token_ids, sampling.allowed_token_ids, sampling.logit_bias
    if len(stop) + len(allowed) + len(bias) <= _FEW:
        return PackedSampling(sampling)
    masks = TokenMasks(
        array("i", stop).tobytes(),
        array("i", allowed).tobytes(),
        array("i", (token for token, _ in bias)).tobytes(),
        array("d", (value for _, value in bias)).tobytes(),
    )
    short = msgspec.structs.replace(sampling, stop_token_ids=(), allowed_token_ids=(), logit_bias=())
    return PackedSampling(short, masks)


def attach(sampling: SamplingParams, masks: TokenMasks | None) -> SamplingParams:
    """Undo `detach`, in steps between which other threads run."""
    if masks is None:
        return sampling
    biases = zip(array("i", masks.bias_ids), array("d", masks.biases), strict=True)
    return msgspec.structs.replace(
        sampling,
        stop_token_ids=tuple(array("i", masks.stop_ids)),
        allowed_token_ids=tuple(array("i", masks.allowed_ids)),
        logit_bias=tuple((token, bias) for token, bias in biases),
    )
