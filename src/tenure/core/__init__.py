"""The pure part of an engine: lifecycle, ledger, scheduler, admission. No torch, clock, socket or thread."""
