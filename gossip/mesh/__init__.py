"""The gossip mesh: messages of a topic reach every subscriber over a few links of each node (replication.md §7)."""
