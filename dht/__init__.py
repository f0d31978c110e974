"""Finding peers and capabilities: Kademlia as a pure machine (arrives with discovery)."""
