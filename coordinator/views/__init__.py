"""Views for people: snapshot, network view, control client, credit, report."""
