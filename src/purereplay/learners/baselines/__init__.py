"""The rivals of the paper, one a file; `settings` says what they can be told, `build` makes one."""
