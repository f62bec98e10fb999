from collections.abc import Callable

import pytest

from tenure.core.ledger import BlockLease, Holder, HolderKind, Ledger, LedgerError, LedgerSnapshot
from tenure.core.prefix_cache import chain_hashes

ITEM, OTHER = Holder(HolderKind.ITEM, 7), Holder(HolderKind.ITEM, 8)
STEP, TRANSFER = Holder(HolderKind.STEP, 41), Holder(HolderKind.TRANSFER, 3)
TICKET = Holder(HolderKind.TICKET, 9)
NAMES = chain_hashes(b"", "", range(64), 4)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(num_blocks=8, num_slots=2)


def opened(ledger: Ledger, blocks: int, holder: Holder = ITEM) -> BlockLease:
    lease = ledger.open_blocks(holder)
    ledger.grow(lease, blocks)
    return lease


def contents(ledger: Ledger) -> list[tuple[str, list[int]]]:
    return [(repr(lease), list(lease.blocks)) for lease in ledger.leases() if isinstance(lease, BlockLease)]


def counts(ledger: Ledger) -> tuple[int, int, int, int]:
    """(free, cached, leased, quarantined), after an audit."""
    ledger.audit()
    snapshot = ledger.snapshot()
    assert snapshot.conserved
    return snapshot.free, snapshot.cached, snapshot.leased, snapshot.quarantined


def refuses(ledger: Ledger, message: str, act: Callable[[], object]) -> None:
    """`act` raises, and nothing has changed."""
    before = ledger.snapshot(), contents(ledger)
    with pytest.raises(LedgerError, match=message):
        act()
    assert (ledger.snapshot(), contents(ledger)) == before
    ledger.audit()


def test_a_lease_is_free_when_its_last_holder_lets_go(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.hold(lease, STEP)
    assert ledger.release(lease, ITEM) is False
    assert counts(ledger) == (5, 0, 3, 0)
    assert ledger.release(lease, STEP) is True
    assert counts(ledger) == (8, 0, 0, 0)


def test_a_slot_is_free_when_its_last_holder_lets_go_whoever_has_blocks(ledger: Ledger) -> None:
    slot, lease = ledger.open_slot(ITEM), opened(ledger, 3)
    ledger.hold(slot, STEP)
    assert ledger.release(slot, ITEM) is False
    assert ledger.available_slots == 1
    assert ledger.release(slot, STEP) is True
    assert ledger.available_slots == 2
    assert counts(ledger) == (5, 0, 3, 0)
    refuses(ledger, "is not open", lambda: ledger.hold(slot, STEP))
    ledger.release(lease, ITEM)
    assert counts(ledger) == (8, 0, 0, 0)


def test_a_second_release_raises(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.hold(lease, STEP)
    ledger.release(lease, ITEM)
    refuses(ledger, "item 7 does not hold", lambda: ledger.release(lease, ITEM))
    ledger.release(lease, STEP)
    refuses(ledger, "is not open", lambda: ledger.release(lease, STEP))


def test_a_stranger_can_release_nothing(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    refuses(ledger, "item 8 does not hold", lambda: ledger.release(lease, OTHER))
    refuses(ledger, "is not open", lambda: ledger.release(BlockLease(1, {ITEM}), ITEM))
    assert counts(ledger) == (5, 0, 3, 0)


def test_holding_twice_raises(ledger: Ledger) -> None:
    lease = opened(ledger, 1)
    refuses(ledger, "holds .* already", lambda: ledger.hold(lease, ITEM))


def test_nothing_can_be_done_with_a_closed_lease(ledger: Ledger) -> None:
    lease = opened(ledger, 1)
    ledger.release(lease, ITEM)
    refuses(ledger, "is not open", lambda: ledger.hold(lease, STEP))
    refuses(ledger, "is not open", lambda: ledger.grow(lease, 1))
    refuses(ledger, "is not open", lambda: ledger.share(lease, []))
    refuses(ledger, "is not open", lambda: ledger.publish(lease, 0, NAMES[0]))


def test_growing_beyond_what_is_available_changes_nothing(ledger: Ledger) -> None:
    lease = opened(ledger, 5)
    refuses(ledger, "4 blocks wanted, 3 available", lambda: ledger.grow(lease, 4))
    ledger.grow(lease, 3)
    refuses(ledger, "1 blocks wanted, 0 available", lambda: ledger.grow(lease, 1))


def test_no_more_leases_than_slots(ledger: Ledger) -> None:
    ledger.open_slot(ITEM)
    ledger.open_slot(OTHER)
    refuses(ledger, "no slot is free", lambda: ledger.open_slot(STEP))


def test_a_slot_has_a_new_generation_for_each_lease(ledger: Ledger) -> None:
    seen = set()
    for _ in range(5):
        lease = ledger.open_slot(ITEM)
        seen.add((lease.slot, lease.generation))
        ledger.release(lease, ITEM)
    assert len(seen) == 5


def test_a_block_is_never_in_two_leases_unless_shared(ledger: Ledger) -> None:
    first, second = opened(ledger, 4), opened(ledger, 4, OTHER)
    assert sorted(first.blocks + second.blocks) == list(range(8))


def test_published_blocks_stay_cached_and_can_be_shared(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.publish(lease, 0, NAMES[0])
    ledger.publish(lease, 1, NAMES[1])
    assert counts(ledger) == (5, 0, 3, 0)
    first, second, _ = lease.blocks
    ledger.release(lease, ITEM)
    assert counts(ledger) == (6, 2, 0, 0)
    matched = ledger.cache.match(NAMES)
    assert matched == [first, second]
    one, two = ledger.open_blocks(ITEM), ledger.open_blocks(OTHER)
    ledger.share(one, matched)
    ledger.share(two, matched)
    assert counts(ledger) == (6, 0, 2, 0)
    ledger.release(one, ITEM)
    assert counts(ledger) == (6, 0, 2, 0)
    ledger.release(two, OTHER)
    assert counts(ledger) == (6, 2, 0, 0)


def test_only_cached_blocks_can_be_shared(ledger: Ledger) -> None:
    lease = opened(ledger, 2)
    ledger.publish(lease, 0, NAMES[0])
    other = ledger.open_blocks(OTHER)
    refuses(ledger, "is not cached", lambda: ledger.share(other, lease.blocks))


def test_cached_blocks_are_given_up_when_others_need_them_but_not_while_in_use(ledger: Ledger) -> None:
    lease = opened(ledger, 4)
    for index in range(4):
        ledger.publish(lease, index, NAMES[index])
    kept, forgotten = lease.blocks[:2], lease.blocks[2:]
    ledger.release(lease, ITEM)
    reader = ledger.open_blocks(ITEM)
    ledger.share(reader, kept)
    assert ledger.available_blocks == 6
    fresh = ledger.grow(reader, 6)
    assert set(forgotten) <= set(fresh)
    assert not set(kept) & set(fresh)
    assert ledger.cache.match(NAMES) == kept


def test_the_end_of_a_text_is_forgotten_before_its_beginning(ledger: Ledger) -> None:
    lease = opened(ledger, 8)
    for index in range(8):
        ledger.publish(lease, index, NAMES[index])
    ledger.release(lease, ITEM)
    ledger.grow(ledger.open_blocks(ITEM), 3)
    assert len(ledger.cache.match(NAMES)) == 5


def test_a_transfer_as_the_only_holder_is_quarantine(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.hold(lease, TRANSFER)
    assert counts(ledger) == (5, 0, 3, 0)
    ledger.release(lease, ITEM)
    assert counts(ledger) == (5, 0, 0, 3)
    assert ledger.available_blocks == 5
    other = ledger.open_blocks(OTHER)
    refuses(ledger, "6 blocks wanted, 5 available", lambda: ledger.grow(other, 6))
    ledger.release(lease, TRANSFER)
    assert counts(ledger) == (8, 0, 0, 0)


def test_what_is_quarantined_is_given_to_nobody(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.hold(lease, TRANSFER)
    ledger.release(lease, ITEM)
    for act in (lambda: ledger.hold(lease, OTHER), lambda: ledger.grow(lease, 1), lambda: ledger.share(lease, [])):
        refuses(ledger, "is quarantined", act)


def test_a_ticket_holds_blocks_when_the_item_has_left(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.hold(lease, TICKET)
    ledger.release(lease, ITEM)
    assert counts(ledger) == (5, 0, 3, 0)
    ledger.release(lease, TICKET)
    assert counts(ledger) == (8, 0, 0, 0)


def test_a_step_and_a_transfer_together_are_no_quarantine_yet(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.hold(lease, TRANSFER)
    ledger.hold(lease, STEP)
    ledger.release(lease, ITEM)
    assert counts(ledger) == (5, 0, 3, 0)
    ledger.release(lease, STEP)
    assert counts(ledger) == (5, 0, 0, 3)


def test_a_quarantined_block_that_another_item_shares_counts_as_leased(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.publish(lease, 0, NAMES[0])
    ledger.hold(lease, TRANSFER)
    ledger.release(lease, ITEM)
    reader = ledger.open_blocks(OTHER)
    ledger.share(reader, lease.blocks[:1])
    assert counts(ledger) == (5, 0, 1, 2)
    ledger.release(lease, TRANSFER)
    assert counts(ledger) == (7, 0, 1, 0)
    ledger.release(reader, OTHER)
    assert counts(ledger) == (7, 1, 0, 0)


@pytest.mark.parametrize(
    ("blocks", "slots", "conserved"),
    [
        ((8, 5, 1, 1, 1), (2, 1, 1), True),
        ((8, 5, 1, 1, 0), (2, 1, 1), False),
        ((8, 6, 1, 1, 1), (2, 1, 1), False),
        ((8, 9, 0, -1, 0), (2, 1, 1), False),
        ((8, 5, 1, 1, 1), (2, 1, 0), False),
        ((8, 5, 1, 1, 1), (2, 1, 2), False),
    ],
)
def test_a_snapshot_knows_whether_it_adds_up(blocks: tuple[int, ...], slots: tuple[int, ...], conserved: bool) -> None:
    assert LedgerSnapshot(*blocks, *slots).conserved is conserved


def test_a_slot_that_two_leases_have_or_none_shows_in_the_snapshot(ledger: Ledger) -> None:
    slot = ledger.open_slot(ITEM)
    assert (ledger.snapshot().slots_free, ledger.snapshot().slots_leased) == (1, 1)
    lost = ledger._free_slots.pop()
    assert not ledger.snapshot().conserved
    ledger._free_slots += [lost, slot.slot]
    assert not ledger.snapshot().conserved


def test_names_say_who_holds(ledger: Ledger) -> None:
    lease = opened(ledger, 3)
    ledger.hold(lease, STEP)
    assert repr(lease) == "<BlockLease 1, held by item 7, step 41>"
    assert repr(ledger.open_slot(OTHER)) == "<SlotLease 2, held by item 8>"
    assert "leased=3" in repr(ledger)


@pytest.mark.parametrize(
    "harm",
    [
        lambda ledger, lease: lease.blocks.pop(),
        lambda ledger, lease: lease.blocks.append(lease.blocks[0]),
        lambda ledger, lease: lease.holders.clear(),
        lambda ledger, lease: setattr(ledger.open_slot(OTHER), "slot", 1),
        lambda ledger, lease: ledger.cache.mark_idle(lease.blocks[0]),
    ],
)
def test_an_audit_finds_what_was_changed_behind_the_ledgers_back(
    ledger: Ledger, harm: Callable[[Ledger, BlockLease], object]
) -> None:
    lease = opened(ledger, 3)
    ledger.publish(lease, 0, NAMES[0])
    ledger.audit()
    harm(ledger, lease)
    with pytest.raises(LedgerError):
        ledger.audit()
