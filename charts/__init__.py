"""The Helm chart, and what makes its generated files."""
