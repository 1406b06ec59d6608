"""Moving blocks and tails between workers: stream layout, frames, leases, gRPC transport."""
