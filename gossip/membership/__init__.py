"""Who is alive in a swarm of up to 500 members: SWIM with Lifeguard as a pure machine."""
