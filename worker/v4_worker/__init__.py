"""What prefill and decode workers share: the process around an engine, its router streams, health and drain."""
