"""The subset of the basic tests for two machines: both carry a guest of their own, and time is short."""

from test_basic import test_flood_ping, test_ping_sizes, test_tcp

__all__ = ["test_flood_ping", "test_ping_sizes", "test_tcp"]
