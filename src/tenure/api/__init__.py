"""HTTP: the guard, routes, validation, streams."""
