"""`mtp-bench`: honest numbers. Every figure stands beside its bound, and what is compared is measured in turn."""
