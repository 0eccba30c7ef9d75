"""The thin client: the `mtp-client` command and the same thing as a library."""
