"""What runs in front of downstream services: a script and a server, both without torch."""
