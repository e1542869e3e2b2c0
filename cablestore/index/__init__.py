"""Rows of any catalog of views: planned, written, rebuilt, checked. This package knows no view by name."""
