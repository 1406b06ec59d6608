"""What enters a decode worker (an adopted cache) and what leaves it (a stream of tokens)."""
