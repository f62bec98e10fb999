"""Every row sees its whole text, or the first rows of it, and nothing else, with all back ends, whatever the length."""

from collections.abc import Sequence

import pytest
import torch

from tenure.errors import CallerError
from tenure.kernels import native
from tenure.layers.full_attention import TEXT_ATTENTION_BACKENDS, TextShape, text_attention
from tenure.layers.text_batch import AlikeTexts, pack_texts
from tests.layers.threads import threads as using

CPU = torch.device("cpu")
needs_native = pytest.mark.skipif(
    not native.can_run_avx512(torch.float32, CPU), reason="no native attention of texts here"
)
BACKENDS = [pytest.param(name, marks=needs_native) if name == "native" else name for name in TEXT_ATTENTION_BACKENDS]
LENGTHS = [1, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 129, 129, 200, 255, 256, 257, 400, 512, 513]


def shape(num_heads: int, head_dim: int) -> TextShape:
    return TextShape(num_heads, head_dim, torch.float32, CPU)


def alike(lengths: Sequence[int], unattended: Sequence[int] | None = None) -> tuple[AlikeTexts, ...]:
    return pack_texts([[0] * length for length in lengths], unattended=unattended).alike


def expected(heads_T3NH: torch.Tensor, lengths: Sequence[int], unattended: Sequence[int] | None = None) -> torch.Tensor:
    """By the definition, in double precision."""
    outputs = []
    keys = [length - hidden for length, hidden in zip(lengths, unattended or [0] * len(lengths), strict=True)]
    for text, seen in zip(heads_T3NH.double().split(list(lengths)), keys, strict=True):
        q, k, v = text.permute(1, 2, 0, 3)
        k, v = k[:, :seen], v[:, :seen]
        weights = torch.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, dim=-1)
        outputs.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(outputs).float()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(12, 32), (3, 64), (2, 8), (1, 33), (2, 128), (5, 1)])
@pytest.mark.parametrize("spread", [1.0, 30.0], ids=["flat", "peaked"])
def test_each_text_by_itself(num_heads: int, head_dim: int, spread: float, backend: str) -> None:
    torch.manual_seed(0)
    heads = torch.randn(sum(LENGTHS), 3, num_heads, head_dim)
    heads[:, 0] *= spread
    with torch.inference_mode():
        found = text_attention(shape(num_heads, head_dim), backend)(alike(LENGTHS))(heads)
    torch.testing.assert_close(found, expected(heads, LENGTHS), atol=1e-5 * spread, rtol=1e-4)


UNSEEN = [(3, 2), (32, 0), (32, 1), (32, 27), (32, 27), (64, 31), (300, 44), (300, 299), (513, 257)]
"""Lengths of texts, and how many of their last rows no row sees; in the order of packed texts."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_no_row_sees_see_the_others(backend: str) -> None:
    torch.manual_seed(5)
    lengths, unattended = zip(*UNSEEN, strict=True)
    heads = torch.randn(sum(lengths), 3, 3, 32)
    with torch.inference_mode():
        found = text_attention(shape(3, 32), backend)(alike(lengths, unattended))(heads)
    torch.testing.assert_close(found, expected(heads, lengths, unattended), atol=1e-5, rtol=1e-4)


@needs_native
@pytest.mark.parametrize("place", range(len(UNSEEN)))
def test_a_text_with_such_rows_is_the_same_in_any_company(place: int) -> None:
    torch.manual_seed(6)
    attention, (lengths, unattended) = text_attention(shape(4, 32), "native"), zip(*UNSEEN, strict=True)
    heads = torch.randn(sum(lengths), 3, 4, 32)
    rows = slice(sum(lengths[:place]), sum(lengths[: place + 1]))
    with torch.inference_mode():
        alone = attention(alike(lengths[place : place + 1], unattended[place : place + 1]))(heads[rows].clone())
        assert torch.equal(attention(alike(lengths, unattended))(heads)[rows], alone)


@needs_native
@pytest.mark.parametrize("length", [1, 5, 64, 257, 300, 600])
def test_a_text_is_the_same_in_any_company_and_on_any_number_of_threads(length: int) -> None:
    torch.manual_seed(1)
    attention, lengths = text_attention(shape(4, 32), "native"), [3, 40, length, 301]
    lengths.sort()
    heads = torch.randn(sum(lengths), 3, 4, 32)
    first = sum(lengths[: lengths.index(length)])
    own = heads[first : first + length].clone()
    with torch.inference_mode():
        alone = attention(alike([length]))(own)
        for count in (1, 2):
            with using(count):
                together = attention(alike(lengths))(heads)
            assert torch.equal(together[first : first + length], alone)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", range(3), ids=["query", "key", "value"])
def test_what_is_not_finite_stays_in_its_text_and_shows_there(part: int, bad: float, backend: str) -> None:
    torch.manual_seed(2)
    lengths = [5, 70, 90]
    heads = torch.randn(sum(lengths), 3, 2, 32)
    heads[10, part, 1, 4] = bad
    with torch.inference_mode():
        found = text_attention(shape(2, 32), backend)(alike(lengths))(heads)
    sound, spoilt = torch.cat((found[:5], found[75:])), found[5:75]
    assert torch.isfinite(sound).all()
    rows = spoilt[5] if part == 0 else spoilt
    assert not torch.isfinite(rows).all(), "an answer made of it must not look sound"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1e6, 3e9])
def test_large_numbers_that_are_finite_give_an_answer(size: float, backend: str) -> None:
    torch.manual_seed(3)
    lengths = [3, 130]
    heads = torch.randn(sum(lengths), 3, 2, 8)
    heads[:, :2] *= size
    with torch.inference_mode():
        found = text_attention(shape(2, 8), backend)(alike(lengths))(heads)
    assert torch.isfinite(found).all()
    assert found.abs().max() <= heads[:, 2].abs().max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_are_infinitely_far_off_do_not_spoil_the_others(backend: str) -> None:
    """Of a long text, all of the first ones: their scores are below every number."""
    torch.manual_seed(4)
    heads = torch.randn(600, 3, 1, 8)
    heads[:, 0] = heads[:, 0].abs() + 1
    heads[:300, 1] = -3e38
    with torch.inference_mode():
        found = text_attention(shape(1, 8), backend)(alike([600]))(heads)
    q, k, v = heads.squeeze(2).double().unbind(1)
    weights = torch.softmax(q @ k[300:].T * 8**-0.5, dim=-1)
    torch.testing.assert_close(found, (weights @ v[300:]).float(), atol=1e-5, rtol=1e-4)


@needs_native
def test_heads_that_are_too_large_are_left_to_torch() -> None:
    large = shape(2, 160)
    heads = torch.randn(9, 3, 2, 160)
    with torch.inference_mode():
        found = text_attention(large)(alike([4, 5]))(heads)
    torch.testing.assert_close(found, expected(heads, [4, 5]), atol=2e-5, rtol=1e-4)
    with pytest.raises(CallerError, match="head size"):
        text_attention(large, "native")


def test_an_unknown_back_end() -> None:
    with pytest.raises(CallerError, match="torch, native"):
        text_attention(shape(2, 8), "cuda")
