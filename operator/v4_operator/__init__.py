"""The kopf operator: one V4Deployment becomes pools, a router and their policies."""
