"""The spec of a V4Deployment: records, checks of its fields, sizes of a worker. Pure."""
