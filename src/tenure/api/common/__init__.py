"""What the API families share: the call, jobs for the engine, sampling rules, usage, the choice of a model."""
