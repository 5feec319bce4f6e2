"""From text to training windows: corpora, tokens, the Hub."""
