"""What runs in front of downstream services, without torch: the server, its images, its manifests."""
