"""Scripts that drive other systems, each in an environment of its own (simulations/bench/foreign.py).

They import nothing of masos, and nothing of masos imports them.
"""
