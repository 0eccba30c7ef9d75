"""The MTP head: its module, its cache, where its tensors come from, and which hidden rows feed it."""
