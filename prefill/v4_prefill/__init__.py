"""What enters a prefill worker (a prompt) and what leaves it (a leased cache, the first tokens)."""
