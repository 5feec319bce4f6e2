"""What a run fixes for ever: manifest, model spec, compatibility."""
