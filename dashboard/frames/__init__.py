"""Pure functions that turn a view into rows and figures, without Streamlit."""
