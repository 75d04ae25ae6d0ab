"""What gateway and engine say to each other and to clients, free of torch."""
