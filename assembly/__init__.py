"""What the service is made of: parts, routes, jobs and status. No algorithm."""
