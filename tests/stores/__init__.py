"""Targets in an object store: moto's S3, in a process of its own."""
