import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.prefix_cache import PrefixCache, chain_hashes

A, B, C, D = chain_hashes(b"seed", "", range(16), 4)


def test_only_full_blocks_have_names() -> None:
    assert [len(chain_hashes(b"", "", range(count), 4)) for count in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_name_covers_everything_before_it() -> None:
    one = chain_hashes(b"", "", [1, 2, 3, 4, 5, 6, 7, 8], 4)
    other = chain_hashes(b"", "", [1, 2, 3, 9, 5, 6, 7, 8], 4)
    same = chain_hashes(b"", "", [1, 2, 3, 4, 5, 6, 7, 9], 4)
    assert not set(one) & set(other)
    assert (one[0] == same[0], one[1] == same[1]) == (True, False)


def test_seeds_and_salts_keep_names_apart() -> None:
    names = {
        chain_hashes(seed, salt, range(8), 4)[block]
        for seed in (b"", b"one", b"two")
        for salt in ("", "a", "b")
        for block in (0, 1)
    }
    assert len(names) == 18


@settings(deadline=None, database=None, derandomize=True)
@given(st.lists(st.integers(0, 200_000), max_size=40), st.integers(1, 8), st.integers(0, 40))
def test_names_found_bit_by_bit_are_the_same(tokens: list[int], size: int, cut: int) -> None:
    known = chain_hashes(b"s", "x", tokens[:cut], size)
    assert chain_hashes(b"s", "x", tokens[len(known) * size :], size, known) == chain_hashes(b"s", "x", tokens, size)


def test_the_longest_known_beginning_is_found() -> None:
    cache = PrefixCache()
    for name, block in ((A, 10), (B, 11), (D, 13)):
        assert cache.publish(name, block)
    assert cache.match([A, B, C, D]) == [10, 11]
    assert cache.match([B, A]) == [11, 10]
    assert cache.match([C]) == []


def test_a_name_and_a_block_belong_to_each_other_alone() -> None:
    cache = PrefixCache()
    assert cache.publish(A, 10)
    assert not cache.publish(A, 11)
    assert not cache.publish(B, 10)
    assert cache.match([A]) == [10]
    assert 11 not in cache
    assert len(cache) == 1


def test_the_least_recently_used_block_is_forgotten_first() -> None:
    cache = PrefixCache()
    for name, block in ((A, 10), (B, 11), (C, 12)):
        cache.publish(name, block)
        cache.mark_idle(block)
    cache.mark_used(10)
    cache.mark_idle(10)
    assert [cache.evict(), cache.evict(), cache.evict()] == [11, 12, 10]
    assert cache.match([A]) == []
    assert len(cache) == 0


def test_only_idle_blocks_can_be_forgotten() -> None:
    cache = PrefixCache()
    cache.publish(A, 10)
    assert (cache.idle, cache.is_idle(10)) == (0, False)
    with pytest.raises(KeyError):
        cache.evict()
    cache.mark_idle(10)
    assert (cache.idle, cache.is_idle(10)) == (1, True)
    cache.mark_used(10)
    with pytest.raises(KeyError):
        cache.evict()
    assert cache.match([A]) == [10]
