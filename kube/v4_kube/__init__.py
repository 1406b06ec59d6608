"""A client of the Kubernetes API, and watches that resume: what operator and router share. Knows no kind of object."""
