"""The OpenAI front door: chat encoding, tokenizing, placement, streams, retries."""
