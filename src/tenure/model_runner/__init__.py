"""The execution of a step: batch, slots, heads, sampler."""
