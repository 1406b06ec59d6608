"""The router: an OpenAI-compatible HTTP API with chat encoding, tokenization, placement, streaming and retries."""
