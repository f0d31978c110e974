"""The loopback control API."""
