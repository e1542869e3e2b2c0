"""Rows of any catalog of views: planning, writing, rebuilding and checking them, independently of the views."""
