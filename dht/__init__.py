"""Finding peers and capabilities: Kademlia as a pure machine."""
