"""What people see: snapshot, network view, control client, credit, report."""
