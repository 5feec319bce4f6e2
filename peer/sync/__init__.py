"""States for newcomers and late-comers: who asks, who gives, what proves a piece."""
