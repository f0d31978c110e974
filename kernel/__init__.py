"""MAS-OS on one node: memory, turns, scheduler, allocator, agents."""
