"""Everything that talks to the cluster, with the caches and the queue that serve it."""
