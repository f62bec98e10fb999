"""The APIs that are served: routes, bodies, validation, replies."""
