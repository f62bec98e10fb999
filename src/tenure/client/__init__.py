"""The API process's side of the wire: connections to engines, and the handles of open requests."""
