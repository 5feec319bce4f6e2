"""The pages, a module each. The folder is not called `pages`, because Streamlit would run the files in it itself."""
