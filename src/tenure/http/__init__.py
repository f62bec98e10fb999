"""One HTTP exchange: connection, guard, body, stream of events, errors. Knows neither models nor engines."""
