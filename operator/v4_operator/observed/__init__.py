"""What exists: live objects, what routers say, and how desired objects compare with them. Pure."""
