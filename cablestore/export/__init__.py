"""A store as files with checksums, and back."""
