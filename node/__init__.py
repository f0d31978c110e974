"""The outside world and the composition: transport, store, engines, control API, command line."""
