"""The objects that a V4Deployment becomes. Pure."""
