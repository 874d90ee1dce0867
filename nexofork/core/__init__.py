"""Pure bytes and values: no I/O, no asyncio, no clock."""
