"""From a view to rows and figures: pure functions, no Streamlit."""
