"""What pages show: a module for each. Not called `pages`: Streamlit would run the files of such a folder itself."""
