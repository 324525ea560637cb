"""The mask language: combinators, traced predicates, patterns, text form."""
