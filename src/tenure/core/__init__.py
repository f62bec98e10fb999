"""The pure heart: lifecycle, ledger, scheduler, admission. No torch, clock, socket or thread."""
