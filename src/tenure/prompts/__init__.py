"""From what callers send to token ids: conversations, templates, pairs, long texts; and the rules for them."""
