"""The paper's tables: its numbers, and our own beside them."""
