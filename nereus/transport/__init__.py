"""State movement inside any process, ours or a framework's: shard stores, communicators, and the executor over both."""
