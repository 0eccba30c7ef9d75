"""Prefill and rounds: draft, verify, accept, commit; the caches of a request and their rollback."""
