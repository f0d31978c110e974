"""The pool view: units, temporal and semantic edges, the rolling summary."""
