"""What peers say to each other: identity, codec, clock, ops, records, frames and the transport seam. Pure."""
