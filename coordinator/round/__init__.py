"""One attempt at a version: exchange, leader, reducer, spot checks, voting, ballot."""
