"""The worker protocol and its generated code (`make proto`)."""
