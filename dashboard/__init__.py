"""Streamlit pages over read-only snapshots of a run (design §3). Never imports `peer`."""
