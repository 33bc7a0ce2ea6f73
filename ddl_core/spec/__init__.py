"""What is asked for: values, and nothing that acts."""
