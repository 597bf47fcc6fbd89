"""What is shipped inside the package: the embedded starter model and how it is made."""
