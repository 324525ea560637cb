"""The explorer: one page that shows a mask to its last pair; see docs/explorer.md."""
