"""Who goes next: role first, then (agent, peer, model)."""
