"""The service: the front (`front/`) and the decode engine (`engine/`)."""
